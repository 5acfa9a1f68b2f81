"""torch's key-value stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def set_key(store: Any, key: str, value: str) -> None:
    """Sets a key, so that has_keys() finds it.

    Relies on: `Store.check(keys)`, which torch 2.1 does not offer to Python; then a counter beside each key says if
    it was set. (`Store.compare_set` of torch 2.1 would say it, too, but it makes bytes without holding the GIL, which
    ends processes that have other threads.)
    Tried with: all.
    Notices: a key that was set is not found, or one that was not set is.
    Lost then: the rendezvous of a process group fails, and the error names the ranks.
    """
    store.set(key, value)
    if not hasattr(store, "check"):
        store.add(_counter(key), 1)


def has_keys(store: Any, keys: Sequence[str]) -> bool:
    """Returns whether all of the keys were set by set_key().

    Relies on: the same as set_key().
    Tried with: all.
    Notices: a key that was set is not found, or one that was not set is.
    Lost then: the rendezvous of a process group fails, and the error names the ranks.
    """
    if hasattr(store, "check"):
        return bool(store.check(list(keys)))
    return all(store.add(_counter(key), 0) > 0 for key in keys)


def _counter(key: str) -> str:
    return f"{key}/times set"
