"""torch's key-value stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore


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


def below_restarts(store: Any, count: str) -> Any:
    """Returns a store in which ranks find each other although torchrun has restarted only some of them.

    torch 2.1 begins all keys of `env://` with `count`, the TORCHELASTIC_RESTART_COUNT of a rank's agent, which differs
    between hosts. Then the result is the agent's store, with a prefix that all ranks have. Otherwise it is `store`.

    Relies on: the prefix `/worker/attempt_N`, which torch adds below its other prefixes, and
    `PrefixStore.underlying_store`.
    Tried with: 2.1.2, and 2.13, which has no such prefix.
    Notices: a counter below the prefixes is not found under that key.
    Lost then: a job of torchrun on several hosts may not start again after it has lost a rank; the error names the
    ranks that are missing.
    """
    lowest, below = None, store
    while isinstance(below, PrefixStore):
        lowest, below = below, below.underlying_store
    if lowest is None:
        return store
    lowest.add("perseus", 1)
    has_prefix = below.add(f"/worker/attempt_{count}/perseus", 0) > 0
    return PrefixStore("/worker/all_attempts", below) if has_prefix else store


def _counter(key: str) -> str:
    return f"{key}/times set"
