"""torch's key-value stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_NO_KEY = "perseus: the store has no such key"


def has_keys(store: Any, keys: Sequence[str]) -> bool:
    """Returns whether the store has all of the keys.

    Relies on: `Store.check(keys)`, which torch 2.1 does not offer to Python; then
    `Store.compare_set(key, expected, new)`, which returns `expected` and sets nothing if there is no such key.
    Tried with: all.
    Notices: a key that was set is not found, or one that was not set is.
    Lost then: the rendezvous of a process group fails, and the error names the ranks.
    """
    if hasattr(store, "check"):
        return bool(store.check(list(keys)))
    return all(store.compare_set(key, _NO_KEY, _NO_KEY) != _NO_KEY.encode() for key in keys)
