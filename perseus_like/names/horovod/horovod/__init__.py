"""Horovod's names. This folder's parent is put on the module search path where they are asked for."""

from importlib import import_module

from perseus_like import run
from perseus_like.names import open_door

open_door("horovod")
# With Horovod, these are there as soon as anything of it is.
for _module in ("common", "runner"):
    import_module(f"horovod.{_module}")

# Of the API, for programs that ask; this package's own is perseus_like.__version__.
__version__ = "0.28.1"

__all__ = ["__version__", "run"]
