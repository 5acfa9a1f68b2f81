"""The process group in C++: `native` is its module if build_group has compiled it for this torch, otherwise None."""

from .loading import load

native = load()
