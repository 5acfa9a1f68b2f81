"""A key-value store over all ranks for MXNet: `mx.kv.create("dist_sync_perseus")`, once this module is imported.

There is no server. Every rank has all values. Pushed values are reduced over the ranks, so an optimizer of the store
makes the same steps on every rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

from perseus_like import world
from perseus_like.collectives import Collectives, Max, Sum, barrier
from perseus_like.gradients.agreement import OwnerName
from perseus_like.host_facts import replacing
from perseus_like.process_sets import global_process_set
from perseus_like.session import session
from perseus_like.tables import DType
from perseus_like.tensor import ArrayTensors

from .compat.gluon import register_kvstore
from .data_movement import broadcast_
from .engine import OneByOne
from .reductions import reduce
from .two_bit import TwoBit

Array = Any
Key = int | str
NAME = "dist_sync_perseus"

_arrays: Collectives[np.ndarray[Any, Any]] = Collectives(ArrayTensors())


class PerseusKVStore(mx.kvstore.KVStoreBase):  # type: ignore[misc]
    """Values by key. All ranks make the same calls; MXNet's engine may reorder them.

    Pushed values are summed over the devices of this process and over all ranks, as with MXNet's own `dist_sync`. A
    program that scales gradients divides by the batch of all ranks. Module does so itself (`rescale_grad`).

    gluon's Trainer decides on each rank by itself whether a gradient is stale, as with `dist_sync`. If backward passes
    of some ranks leave out parameters, use DistributedTrainer, in which all ranks decide alike.
    """

    type = NAME

    def __init__(self) -> None:
        world.init()
        self._values: dict[Key, Array] = {}
        # Keys whose first value differed between ranks, and whose value has not been fetched since.
        self._differing: set[Key] = set()
        self._updater: Any = None
        self._wire: DType | None = None
        self._two_bit: TwoBit | None = None
        self._one_by_one = OneByOne()
        self._generation = -1
        self._name = ""  # of its requests, once the ranks have agreed

    @property
    def rank(self) -> int:
        return world.rank()

    @property
    def num_workers(self) -> int:
        return world.size()

    @property
    def local_rank(self) -> int:
        """The rank of this process among the ranks of its host, which selects its device."""
        return world.local_rank()

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Returns True for `optimizer`. Otherwise Module would not broadcast the first weights."""
        if capability.lower() != mx.kvstore.KVStoreBase.OPTIMIZER:
            raise ValueError(
                f"is_capable: the capability {capability!r} is unknown; pass {mx.kvstore.KVStoreBase.OPTIMIZER!r}"
            )
        return True

    def init(self, key: Key | Sequence[Key], value: Any) -> None:
        """Sets the values of keys to those of rank 0."""
        for each, given in _pairs(key, value):
            first = _dense(_as_list(given)[0])
            if each in self._values:
                raise ValueError(f"init: the key {each!r} has a value already; use push() or broadcast()")
            stored, name = first.copy(), self._name_of(each, first)
            self._values[each] = broadcast_(stored, 0, f"{name}.init")
            differs = np.array([(stored.asnumpy() != first.asnumpy()).any()], np.uint8)
            if _arrays.allreduce(differs, Max, f"{name}.differs").result()[0]:
                self._differing.add(each)

    def broadcast(self, key: Key | Sequence[Key], value: Any, out: Any, priority: int = 0) -> None:
        """Copies rank 0's `value` into `out` on all ranks, and sets the value of the key."""
        for each, given, targets in _triples(key, value, out):
            stored = _dense(_as_list(given)[0]).copy()
            broadcast_(stored, 0, f"{self._name_of(each, stored)}.broadcast", priority)
            _fill(targets, stored)
            # If the store has an optimizer, `out` are the weights that every step updates, so no second copy is needed.
            self._values[each] = stored if self._updater is None else targets[0]
            self._differing.discard(each)

    def push(self, key: Key | Sequence[Key], value: Any, priority: int = 0) -> None:
        """Sums over devices and ranks. The sum goes to the optimizer; without one, it is the new value."""
        for each, given in _pairs(key, value):
            values = _as_list(given)
            total = mx.nd.empty(values[0].shape, dtype=values[0].dtype)
            self._reduce(each, values, total, priority)
            if self._updater is None:
                self._values[each] = total
                self._differing.discard(each)
            else:
                self._updater(each, total, self._value(each))

    def pull(self, key: Key | Sequence[Key], out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Copies values to `out`, an array or a list with one array for each device."""
        for each, targets in _pairs(key, out):
            _fill(_as_list(targets), self._value(each))
            self._differing.discard(each)

    def pushpull(self, key: Key | Sequence[Key], value: Any, out: Any = None, priority: int = 0) -> None:
        """Pushes, and copies the result into `out`.

        With an optimizer, the result is the updated value of the key. Without an optimizer, it is the sum of the pushed
        values, `out` is `value` by default, and the value of the key does not change.
        """
        for each, given, targets in _triples(key, value, value if out is None else out):
            values = _as_list(given)
            if self._updater is None:
                self._require_same(each)
                self._reduce(each, values, targets[0], priority)
                _fill(targets[1:], targets[0])
                continue
            total = values[0] if len(values) == 1 and values[0].stype == "default" else _sum_of_devices(values)
            self._reduce(each, [total], total, priority)
            self._updater(each, total, self._value(each))
            _fill(targets, self._value(each))

    def row_sparse_pull(self, key: Key, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        """Copies the rows `row_ids` of a value to `out`, a row_sparse array or a list of them."""
        for target, rows in zip(_as_list(out), _as_list(row_ids), strict=True):
            mx.nd.sparse.retain(self._value(key).tostype("row_sparse"), rows).copyto(target)

    def set_optimizer(self, optimizer: Any) -> None:
        """Updates values with this optimizer at each push. All ranks have the same values and the same pushed sums."""
        self._updater = mx.optimizer.get_updater(optimizer)

    def _set_updater(self, updater: Any) -> None:
        """Calls `updater(key, pushed, value)` at each push, in place of an optimizer, to change the value."""
        self._updater = updater

    def set_gradient_compression(self, compression_params: dict[str, Any]) -> None:
        """Compresses pushed values: {"type": "fp16"}, {"type": "bf16"}, or {"type": "2bit", "threshold": 0.5}."""
        kind = str(compression_params.get("type", "none")).lower()
        if kind not in ("none", "fp16", "bf16", "2bit"):
            raise ValueError(f"set_gradient_compression: the type {kind!r} is unknown; use none, fp16, bf16 or 2bit")
        self._wire = {"fp16": DType.float16, "bf16": DType.bfloat16}.get(kind)
        self._two_bit = TwoBit(float(compression_params.get("threshold", 0.5))) if kind == "2bit" else None

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        if self._updater is None:
            raise ValueError("save_optimizer_states: the store has no optimizer; call set_optimizer() before")
        with replacing(Path(fname)) as file:
            file.write_bytes(self._updater.get_states(dump_optimizer))

    def load_optimizer_states(self, fname: str) -> None:
        if self._updater is None:
            raise ValueError("load_optimizer_states: the store has no optimizer; call set_optimizer() before")
        self._updater.set_states(Path(fname).read_bytes())

    def barrier(self) -> None:
        """Blocks until all ranks have called it."""
        barrier()

    _barrier = barrier

    def _value(self, key: Key) -> Array:
        if key not in self._values:
            raise ValueError(f"the key {key!r} has no value; call init() or broadcast() before")
        return self._values[key]

    def _require_same(self, key: Key) -> None:
        if key in self._differing:
            raise ValueError(
                f"pushpull: the ranks initialized {key!r} with different values and have not fetched those of rank 0, "
                "so their weights would differ; unset MXNET_UPDATE_ON_KVSTORE, or call broadcast_parameters() before"
            )

    def _reduce(self, key: Key, values: list[Array], target: Array, priority: int) -> None:
        """Sums `values` of all devices and ranks into `target`."""
        total = values[0] if len(values) == 1 and values[0].stype == "default" else _sum_of_devices(values)
        name = self._name_of(key, total)
        if self._two_bit is not None and total.dtype.__name__.startswith("float"):
            self._two_bit.reduce(key, total, target, name, priority, self._one_by_one.array_of(key))
        else:
            rest = (1.0, 1.0, global_process_set, priority, self._wire, self._one_by_one.array_of(key))
            reduce("allreduce", [total], [target], Sum, name, *rest)

    def _name_of(self, key: Key, value: Array) -> str:
        """Returns the name of a key's requests. The ranks agree on the store's name when it is first used.

        Raises DisagreementError, with the keys, if the ranks first use different ones.
        """
        if self._generation != session.generation:
            first = f"the key {key!r} of a key-value store, {np.dtype(value.dtype)}{list(value.shape)}"
            self._name = OwnerName(global_process_set).meet([first])
            self._generation = session.generation
        return f"{self._name}.{key}"


def create(name: str = NAME) -> Any:
    """Returns a key-value store that reduces over all ranks, or one of MXNet.

    Args:
        name: `dist_sync_perseus` (also `dist-sync-perseus`), or the name of a store of MXNet.

    Returns:
        The store.

    Raises:
        MXNetError: there is no store of this name.

    Examples:
        >>> hvd.create("dist_sync_perseus").num_workers == hvd.size()
        True
    """
    return mx.kvstore.create(name)


def register() -> None:
    """Registers the store with MXNet."""
    for name in (NAME, NAME.replace("_", "-")):
        register_kvstore(name, PerseusKVStore)


def _as_list(value: Any) -> list[Array]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _pairs(key: Key | Sequence[Key], value: Any) -> Iterator[tuple[Key, Any]]:
    if isinstance(key, int | str):
        yield key, value
    else:
        yield from zip(key, value, strict=True)


def _triples(key: Key | Sequence[Key], value: Any, out: Any) -> Iterator[tuple[Key, Any, list[Array]]]:
    for (each, given), (_, targets) in zip(_pairs(key, value), _pairs(key, out), strict=True):
        yield each, given, _as_list(targets)


def _dense(value: Array) -> Array:
    return value if value.stype == "default" else value.tostype("default")


def _sum_of_devices(values: Sequence[Array]) -> Array:
    first, *others = [_dense(value) for value in values]
    return mx.nd.add_n(first, *[value.as_in_context(first.ctx) for value in others])


def _fill(targets: Sequence[Array], value: Array) -> None:
    for target in targets:
        if target is not value:
            value.copyto(target)
