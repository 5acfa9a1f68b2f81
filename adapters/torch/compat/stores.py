"""torch's key-value stores."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

# Enough for a store on another host to answer. A store that says "not yet" too early is asked again.
_ANSWER = timedelta(milliseconds=50)


def has_keys(store: Any, keys: Sequence[str]) -> bool:
    """Returns whether the store has all of the keys.

    Relies on: `Store.check(keys)`, which torch 2.1 does not offer to Python; then a short `Store.wait(keys, timeout)`,
    whose RuntimeError means that a key is missing.
    Tried with: all.
    Notices: a key that was set is not found, or one that was not set is.
    Lost then: the ranks of a process group do not meet, and the error names them.
    """
    if hasattr(store, "check"):
        return bool(store.check(list(keys)))
    try:
        store.wait(list(keys), _ANSWER)
    except RuntimeError:
        return False
    return True
