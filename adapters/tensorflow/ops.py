"""The verbs on TensorFlow's tensors and variables, eagerly and in graphs; all are differentiable."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from perseus_like import collectives
from perseus_like.collectives import Adasum, Average, Op, Sum, core_op, resolve_op
from perseus_like.compression import is_identity, wire_dtype, wire_of
from perseus_like.errors import UnsupportedOpError
from perseus_like.process_sets import ProcessSet, global_process_set
from perseus_like.tensor import AS_IT_IS

from . import autograd as autograd  # registers gradients
from . import xla
from .arguments import as_tensor, member_id, root_within, splits_of, with_rows
from .compression import Compression
from .native import operations
from .numbers import number
from .requests import DTYPES, Request, in_order, last_in_order, run

_ANY_DEVICE = contextlib.nullcontext()


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """The reduction of every rank's tensor, variable or IndexedSlices: Average unless `op` says otherwise.

    IndexedSlices are gathered, which adds them up: for Average and Sum alone, and an index that several ranks have
    occurs several times. `ignore_name_scope`: in a graph, `name` is what ranks find each other by, whatever scope the
    node is in; it must not occur twice then.
    """
    chosen = resolve_op(op, average)
    factors = (prescale_factor, postscale_factor)
    if isinstance(tensor, tf.IndexedSlices):
        with _on(device_sparse):
            return _allreduce_sparse(tensor, chosen, name, factors, process_set, ignore_name_scope)
    with _on(device_dense):
        return reduce_dense([as_tensor(tensor)], chosen, name, factors, process_set, compression, ignore_name_scope)[0]


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Several tensors as one unit: all or nothing. IndexedSlices among them are gathered by themselves."""
    chosen = resolve_op(op, average)
    factors = (prescale_factor, postscale_factor)
    results: list[Any] = list(tensors)
    dense = [place for place, tensor in enumerate(tensors) if not isinstance(tensor, tf.IndexedSlices)]
    for place, tensor in enumerate(tensors):
        if isinstance(tensor, tf.IndexedSlices):
            own = None if name is None else f"{name}_{place}of{len(tensors)}"
            with _on(device_sparse):
                results[place] = _allreduce_sparse(tensor, chosen, own, factors, process_set, ignore_name_scope)
    if dense:
        inputs = [as_tensor(tensors[place]) for place in dense]
        with _on(device_dense):
            outputs = reduce_dense(
                inputs, chosen, name, factors, process_set, compression, ignore_name_scope, grouped=True
            )
        for place, output in zip(dense, outputs, strict=True):
            results[place] = output
    return results


def reduce_dense(
    tensors: list[Any],
    op: Op,
    name: str | None,
    factors: tuple[float, float],
    process_set: ProcessSet,
    compression: Any = Compression.none,
    whole_name: bool = False,
    grouped: bool = False,
    member_names: str = "",
) -> list[Any]:
    """One request for all of them. A compression that the core does not know works on each tensor before and after.

    `member_names`: what errors call them, a line each; after a tab, what this rank has where it is a stand-in.
    """
    wire = wire_of(compression)
    contexts: list[Any] = []
    if wire is None and not is_identity(compression):
        pairs = [compression.compress(tensor) for tensor in tensors]
        tensors, contexts = [small for small, _ in pairs], [context for _, context in pairs]
    number_, average = core_op(op)
    request = Request(
        *("allreduce", name, member_id(process_set), grouped, number_, average, op is Adasum, *factors),
        wire=_common_wire(wire, tensors),
        whole_name=whole_name,
        member_names=member_names,
    )
    reduced = run(request, tensors)
    if contexts:
        return [compression.decompress(tensor, context) for tensor, context in zip(reduced, contexts, strict=True)]
    return reduced


def _on(device: str) -> Any:
    """`tf.device`, without its cost where no device is named."""
    return tf.device(device) if device else _ANY_DEVICE


def _common_wire(wire: Any, tensors: Sequence[Any]) -> int:
    if wire is None:
        return AS_IT_IS
    kinds = {wire_dtype(wire, DTYPES.get(tensor.dtype, -1)) for tensor in tensors}
    if len(kinds) > 1:
        raise ValueError("grouped_allreduce with compression: the tensors must all be float32 or float64, or none")
    return kinds.pop()


def _allreduce_sparse(
    slices: Any, op: Op, name: str | None, factors: tuple[float, float], process_set: ProcessSet, whole_name: bool
) -> Any:
    if op not in (Average, Sum):
        raise UnsupportedOpError(f"allreduce of IndexedSlices knows Average and Sum, not {op.name}")
    # As one unit, so that both fail or none.
    request = Request("allgather", name, member_id(process_set), grouped=True, whole_name=whole_name)
    values, indices = run(request, [tf.convert_to_tensor(slices.values), tf.convert_to_tensor(slices.indices)])
    scale = factors[0] * factors[1]
    if scale != 1.0:
        values *= tf.cast(scale, values.dtype)
    if op is Average:
        values /= tf.cast(number("size", request.set_id), values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """All ranks' tensors, one after the other along dimension 0, in which they may differ."""
    request = Request("allgather", name, member_id(process_set), whole_name=ignore_name_scope)
    return run(request, [with_rows("allgather", tensor)])[0]


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """As allgather, for several tensors as one unit. An empty list is given back."""
    if not tensors:
        return list(tensors)
    request = Request("allgather", name, member_id(process_set), grouped=True, whole_name=ignore_name_scope)
    return run(request, [with_rows("grouped_allgather", tensor) for tensor in tensors])


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The tensor of `root_rank` (its rank in the job, also with a process set) on every rank."""
    set_id = member_id(process_set)
    root = root_within(root_rank, process_set)
    request = Request("broadcast", name, set_id, root=root, whole_name=ignore_name_scope)
    return run(request, [as_tensor(tensor)])[0]


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """`splits[r]` rows to rank r. With splits: what came, and the rows from each rank (int32); without: what came."""
    request = Request("alltoall", name, member_id(process_set), whole_name=ignore_name_scope)
    source = with_rows("alltoall", tensor)
    if splits is None:
        return run(request, [source], _no_splits())[0]
    received, received_splits = run(request, [source], splits_of(splits))
    return received, received_splits


def _no_splits() -> Any:
    return _no_splits_eagerly() if tf.executing_eagerly() else tf.zeros([0], tf.int32)


@functools.cache
def _no_splits_eagerly() -> Any:
    return tf.zeros([0], tf.int32)


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """This rank's rows of the reduction (Average or Sum); the first ranks get one more where they do not divide."""
    factors = (prescale_factor, postscale_factor)
    return _reducescatter([tensor], device_dense, compression, op, name, process_set, ignore_name_scope, factors)[0]


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """As reducescatter, for several tensors as one unit. An empty list is given back."""
    if not tensors:
        return list(tensors)
    factors = (prescale_factor, postscale_factor)
    return _reducescatter(tensors, device_dense, compression, op, None, process_set, False, factors, grouped=True)


def _reducescatter(
    tensors: Sequence[Any],
    device: str,
    compression: Any,
    op: int,
    name: str | None,
    process_set: ProcessSet,
    whole_name: bool,
    factors: tuple[float, float],
    grouped: bool = False,
) -> list[Any]:
    chosen = resolve_op(op)
    if chosen not in (Average, Sum):
        raise UnsupportedOpError(f"reducescatter knows Average and Sum, not {chosen.name}")
    with _on(device):
        pairs = [compression.compress(with_rows("reducescatter", tensor)) for tensor in tensors]
        core, average = core_op(chosen)
        request = Request(
            *("reducescatter", name, member_id(process_set), grouped, core, average, False, *factors),
            whole_name=whole_name,
        )
        shares = run(request, [small for small, _ in pairs])
        return [compression.decompress(share, context) for share, (_, context) in zip(shares, pairs, strict=True)]


def join() -> Any:
    """Waits until every rank has joined, contributing zeros to the others' allreduces; gives the last to join."""
    if tf.executing_eagerly():
        return tf.constant(collectives.join(), tf.int32)
    if xla.is_compiling():
        return xla.without_tensors(Request("join"))
    with in_order():
        last = operations.perseus_join(tensor_name="join")
        last_in_order(last.op)
    return last


def barrier(process_set: ProcessSet = global_process_set) -> Any:
    """Waits until all ranks of the set are here; in a graph, an operation that does."""
    if tf.executing_eagerly():
        collectives.barrier(process_set)
        return None
    if xla.is_compiling():
        return xla.without_tensors(Request("barrier", set_id=member_id(process_set))).op
    with in_order():
        met = operations.perseus_barrier(process_set_id=member_id(process_set))
        last_in_order(met)
    return met
