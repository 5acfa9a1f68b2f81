"""Tapes and optimizers that share their attributes with the one that they wrap."""

from __future__ import annotations

from typing import Any


def with_shared_attributes(wrapped: Any, added: type) -> Any:
    """Returns an object with the attributes of `wrapped`, and the methods of `added` and of the class of `wrapped`.

    An attribute that is set on one of the two is set on the other, so either may be used. No constructor is called.
    """
    cls = type(wrapped)
    other: Any = object.__new__(type(cls.__name__, (added, cls), {"__module__": cls.__module__}))
    # A copy: what is in the dictionary that `wrapped` was made with would be cleared by CPython 3.13.0's collector.
    wrapped.__dict__ = other.__dict__ = dict(vars(wrapped))
    return other
