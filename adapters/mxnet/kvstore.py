"""MXNet's key-value store over all ranks: `mx.kv.create("dist_sync_perseus")`, known to MXNet once this is imported.

There is no server. Every rank has all values, and reduces what is pushed with the others; so an optimizer given to the
store steps on every rank alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

from perseus_like import basics
from perseus_like.collectives import Collectives, Max, Sum, barrier
from perseus_like.gradients import claim_name
from perseus_like.process_sets import global_process_set
from perseus_like.session import session
from perseus_like.tensor import ArrayTensors, DType
from perseus_like.whole_files import unfinished

from .engine import InTurn
from .ops import broadcast_, reduce
from .two_bit import TwoBit

Array = Any
Key = int | str
NAME = "dist_sync_perseus"

_arrays: Collectives[np.ndarray[Any, Any]] = Collectives(ArrayTensors())


class PerseusKVStore(mx.kvstore.KVStoreBase):  # type: ignore[misc]
    """Values by key. All ranks make the same calls, in any order that MXNet's engine may choose.

    As with MXNet's own `dist_sync`, what is pushed is summed over the devices of this process and over all ranks: who
    scales gradients divides by the batch of all ranks, as Module does by itself (`rescale_grad`).
    """

    type = NAME

    def __init__(self) -> None:
        basics.init()
        self._values: dict[Key, Array] = {}
        self._differing: set[Key] = (
            set()
        )  # initialized with other values than rank 0's on some rank, and not fetched since
        self._updater: Any = None
        self._wire: DType | None = None
        self._two_bit: TwoBit | None = None
        self._in_turn = InTurn()
        self._generation = session.generation
        self._name = claim_name(global_process_set)

    @property
    def rank(self) -> int:
        return basics.rank()

    @property
    def num_workers(self) -> int:
        return basics.size()

    @property
    def local_rank(self) -> int:
        """This process's rank among those of its host, which numbers its device."""
        return basics.local_rank()

    @staticmethod
    def is_capable(capability: str) -> bool:
        """`optimizer`: yes. Module would leave every rank with the weights it began with, otherwise."""
        if capability.lower() != mx.kvstore.KVStoreBase.OPTIMIZER:
            raise ValueError(
                f"a key-value store is capable of {mx.kvstore.KVStoreBase.OPTIMIZER!r} or not, "
                f"{capability!r} is unknown"
            )
        return True

    def init(self, key: Key | Sequence[Key], value: Any) -> None:
        """Gives keys the values that rank 0 has."""
        for each, given in _pairs(key, value):
            first = _dense(_as_list(given)[0])
            if each in self._values:
                raise ValueError(f"the key {each!r} was initialized before")
            stored = first.copy()
            self._values[each] = broadcast_(stored, 0, f"{self._prefix()}.init.{each}")
            differs = np.array([(stored.asnumpy() != first.asnumpy()).any()], np.uint8)
            if _arrays.allreduce(differs, Max, f"{self._prefix()}.differs.{each}").result()[0]:
                self._differing.add(each)

    def broadcast(self, key: Key | Sequence[Key], value: Any, out: Any, priority: int = 0) -> None:
        """Rank 0's `value` into `out` of all ranks, and under the key."""
        for each, given, targets in _triples(key, value, out):
            stored = _dense(_as_list(given)[0]).copy()
            broadcast_(stored, 0, f"{self._prefix()}.broadcast.{each}", priority)
            _fill(targets, stored)
            # With an optimizer here, `out` are the weights that every step updates: they need no second copy.
            self._values[each] = stored if self._updater is None else targets[0]
            self._differing.discard(each)

    def push(self, key: Key | Sequence[Key], value: Any, priority: int = 0) -> None:
        """Sums over devices and ranks; the optimizer updates with it, or it becomes the value where there is none."""
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
        """Copies values to `out`, an array or a list of one for each device."""
        for each, targets in _pairs(key, out):
            _fill(_as_list(targets), self._value(each))
            self._differing.discard(each)

    def pushpull(self, key: Key | Sequence[Key], value: Any, out: Any = None, priority: int = 0) -> None:
        """With an optimizer: push, and pull into `out`. Without: the sum of what is pushed goes to `out` (or back into
        `value`), and what is under the key stays.
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
        """Copies some rows of a value to `out`, row_sparse arrays; `row_ids` says which for each."""
        for target, rows in zip(_as_list(out), _as_list(row_ids), strict=True):
            mx.nd.sparse.retain(self._value(key).tostype("row_sparse"), rows).copyto(target)

    def set_optimizer(self, optimizer: Any) -> None:
        """From now on what is pushed updates values: on every rank alike, as all have the same of both."""
        self._updater = mx.optimizer.get_updater(optimizer)

    def _set_updater(self, updater: Any) -> None:
        """`updater(key, pushed, value)` changes the value, in place of an optimizer."""
        self._updater = updater

    def set_gradient_compression(self, compression_params: dict[str, Any]) -> None:
        """What is pushed travels with fewer bits: {"type": "fp16"}, "bf16", or {"type": "2bit", "threshold": 0.5}."""
        kind = str(compression_params.get("type", "none")).lower()
        if kind not in ("none", "fp16", "bf16", "2bit"):
            raise ValueError(f"gradient compression {kind!r} is unknown; there are none, fp16, bf16 and 2bit")
        self._wire = {"fp16": DType.float16, "bf16": DType.bfloat16}.get(kind)
        self._two_bit = TwoBit(float(compression_params.get("threshold", 0.5))) if kind == "2bit" else None

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        if self._updater is None:
            raise ValueError("there are no optimizer states to save; set_optimizer() comes first")
        with unfinished(Path(fname)) as file:
            file.write_bytes(self._updater.get_states(dump_optimizer))

    def load_optimizer_states(self, fname: str) -> None:
        if self._updater is None:
            raise ValueError("there is no optimizer to load states into; set_optimizer() comes first")
        self._updater.set_states(Path(fname).read_bytes())

    def barrier(self) -> None:
        """Blocks until all ranks are here."""
        barrier()

    _barrier = barrier

    def _value(self, key: Key) -> Array:
        if key not in self._values:
            raise ValueError(f"there is no value under the key {key!r}; init() or broadcast() comes first")
        return self._values[key]

    def _require_same(self, key: Key) -> None:
        if key in self._differing:
            raise ValueError(
                f"{key!r} was initialized with different values and is trained without fetching those of rank 0: every "
                "rank would go its own way. Unset MXNET_UPDATE_ON_KVSTORE, or begin with broadcast_parameters()"
            )

    def _reduce(self, key: Key, values: list[Array], target: Array, priority: int) -> None:
        """Sums `values` of all devices and ranks into `target`."""
        total = values[0] if len(values) == 1 and values[0].stype == "default" else _sum_of_devices(values)
        name = f"{self._prefix()}.{key}"
        if self._two_bit is not None and total.dtype.__name__.startswith("float"):
            self._two_bit.reduce(key, total, target, name, priority, self._in_turn.of(key))
        else:
            rest = (1.0, 1.0, global_process_set, priority, self._wire, self._in_turn.of(key))
            reduce("allreduce", [total], [target], Sum, name, *rest)

    def _prefix(self) -> str:
        if self._generation != session.generation:
            self._generation, self._name = session.generation, claim_name(global_process_set)
        return self._name


def create(name: str = NAME) -> Any:
    """The key-value store of this name: ours for `dist_sync_perseus` and `dist-sync-perseus`, MXNet's for others."""
    return mx.kvstore.create(name)


def register() -> None:
    """Makes the store known to MXNet."""
    for name in (NAME, NAME.replace("_", "-")):
        mx.kvstore.KVStoreBase.kv_registry[name] = PerseusKVStore


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
