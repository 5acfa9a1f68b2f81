"""The collectives on TensorFlow's tensors and variables, eagerly and in graphs. All are differentiable."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from perseus_like import collectives
from perseus_like.collectives import Adasum, Average, Op, Sum, group_wire, reduce_options, resolve_op
from perseus_like.compression import Compressed, is_called, wire_of
from perseus_like.errors import UnsupportedOpError
from perseus_like.process_sets import ProcessSet, global_process_set

from . import autograd as autograd  # registers gradients
from . import xla
from .arguments import EagerTensor, as_tensor, member_id, root_within, splits_of, with_rows
from .compression import Compression
from .execution import in_order, last_in_order, run
from .native import operations
from .numbers import number
from .requests import DTYPES, request_of

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
    """Returns the reduction of all ranks' tensors, variables or IndexedSlices: their average unless `op` is given.

    IndexedSlices are gathered, and support only Average and Sum. An index of several ranks occurs several times in the
    result. With `ignore_name_scope`, the collective of a graph has exactly the name `name`, without the name scopes of
    the node; the name must be unique.
    """
    chosen = resolve_op(op, average)
    factors = (float(prescale_factor), float(postscale_factor))
    if type(tensor) is not EagerTensor and isinstance(tensor, tf.IndexedSlices):
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
    """Reduces several tensors as one unit: all or none. Each IndexedSlices among them is gathered separately."""
    chosen = resolve_op(op, average)
    factors = (float(prescale_factor), float(postscale_factor))
    results: list[Any] = list(tensors)
    dense = [index for index, tensor in enumerate(tensors) if not isinstance(tensor, tf.IndexedSlices)]
    for index, tensor in enumerate(tensors):
        if isinstance(tensor, tf.IndexedSlices):
            own = None if name is None else f"{name}_{index}of{len(tensors)}"
            with _on(device_sparse):
                results[index] = _allreduce_sparse(tensor, chosen, own, factors, process_set, ignore_name_scope)
    if dense:
        inputs = [as_tensor(tensors[index]) for index in dense]
        with _on(device_dense):
            outputs = reduce_dense(
                inputs, chosen, name, factors, process_set, compression, ignore_name_scope, grouped=True
            )
        for index, output in zip(dense, outputs, strict=True):
            results[index] = output
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
    """Reduces dense tensors by one request. A compression that the core does not know runs on each tensor.

    `member_names` has a line for each tensor: its name in error texts, and after a tab what this rank has in its place.
    """
    small = Compressed(compression, tensors) if is_called(compression) else None
    if small is not None:
        tensors = small.tensors
    wire = wire_of(compression)
    dtypes = [DTYPES.get(tensor.dtype, -1) for tensor in tensors] if wire is not None else ()
    options = reduce_options(op, *factors, group_wire("grouped_allreduce", dtypes, wire))
    request = request_of(
        *("allreduce", name, member_id(process_set), grouped, options, op is Adasum),
        whole_name=whole_name,
        member_names=member_names,
    )
    reduced = run(request, tensors)
    return reduced if small is None else small.restore(reduced)


def _on(device: str) -> Any:
    """Returns `tf.device(device)`, or a context without cost if no device is given."""
    return tf.device(device) if device else _ANY_DEVICE


def _allreduce_sparse(
    slices: Any, op: Op, name: str | None, factors: tuple[float, float], process_set: ProcessSet, whole_name: bool
) -> Any:
    if op not in (Average, Sum):
        raise UnsupportedOpError(
            f"allreduce of IndexedSlices: the operation {op.name} is not supported; use Average or Sum"
        )
    # Both are one unit, so that both fail or none.
    request = request_of("allgather", name, member_id(process_set), grouped=True, whole_name=whole_name)
    values, indices = run(request, [tf.convert_to_tensor(slices.values), tf.convert_to_tensor(slices.indices)])
    scale = factors[0] * factors[1]
    if scale != 1.0:
        # An integer type cannot hold the factor.
        exact = tf.float64 if values.dtype.is_integer else values.dtype
        values = tf.cast(tf.cast(values, exact) * tf.cast(scale, exact), values.dtype)
    if op is Average:
        values /= tf.cast(number("size", request.set_id), values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns all ranks' tensors, concatenated along dimension 0, in which they may differ."""
    request = request_of("allgather", name, member_id(process_set), whole_name=ignore_name_scope)
    return run(request, [with_rows("allgather", tensor)])[0]


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Gathers several tensors as one unit. Returns an empty list for an empty list."""
    if not tensors:
        return list(tensors)
    request = request_of("allgather", name, member_id(process_set), grouped=True, whole_name=ignore_name_scope)
    return run(request, [with_rows("grouped_allgather", tensor) for tensor in tensors])


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the tensor of `root_rank` on every rank. `root_rank` is a rank in the job, also with a process set."""
    set_id = member_id(process_set)
    root = root_within(root_rank, process_set)
    request = request_of("broadcast", name, set_id, root=root, whole_name=ignore_name_scope)
    return run(request, [as_tensor(tensor)])[0]


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends `splits[r]` rows to rank r, or equally many to each rank without `splits`.

    Returns the received rows; with `splits`, also the number of rows from each rank (int32).
    """
    request = request_of("alltoall", name, member_id(process_set), whole_name=ignore_name_scope)
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
    """Returns this rank's rows of the reduction (Average or Sum). The first ranks get one more if rows remain."""
    factors = (float(prescale_factor), float(postscale_factor))
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
    """Does a reducescatter of several tensors as one unit. Returns an empty list for an empty list."""
    if not tensors:
        return list(tensors)
    factors = (float(prescale_factor), float(postscale_factor))
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
        raise UnsupportedOpError(f"reducescatter: the operation {chosen.name} is not supported; use Average or Sum")
    with _on(device):
        small = Compressed(compression, [with_rows("reducescatter", tensor) for tensor in tensors])
        options = reduce_options(chosen, *factors)
        set_id = member_id(process_set)
        request = request_of("reducescatter", name, set_id, grouped, options, whole_name=whole_name)
        return small.restore(run(request, small.tensors))


def join() -> Any:
    """Contributes zeros to other ranks' allreduces until every rank has joined. Returns the last rank to join."""
    if tf.executing_eagerly():
        return tf.constant(collectives.join(), tf.int32)
    if xla.is_compiling():
        return xla.without_tensors(request_of("join"))
    with in_order():
        last = operations.perseus_join(tensor_name="join")
        last_in_order(last.op)
    return last


def barrier(process_set: ProcessSet = global_process_set) -> Any:
    """Blocks until all ranks of the set have called it. In a graph, returns an operation that does so."""
    if tf.executing_eagerly():
        collectives.barrier(process_set)
        return None
    if xla.is_compiling():
        return xla.without_tensors(request_of("barrier", set_id=member_id(process_set))).op
    with in_order():
        met = operations.perseus_barrier(process_set_id=member_id(process_set))
        last_in_order(met)
    return met
