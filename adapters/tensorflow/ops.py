"""The collectives on TensorFlow's tensors and variables, eagerly and in graphs. All are differentiable."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from perseus_like import collectives
from perseus_like.collectives.arguments import group_wire
from perseus_like.collectives.compression import Compressed, is_called, wire_of
from perseus_like.docstrings import documented
from perseus_like.errors import UnsupportedOpError
from perseus_like.operations import Adasum, Average, Op, Sum, reduce_options, resolve_op
from perseus_like.process_sets import ProcessSet, global_process_set

from .compression import Compression
from .native import operations
from .rank_tensors import number
from .requests import DTYPES, request_of, xla
from .requests import autograd as autograd  # registers gradients
from .requests.arguments import EagerTensor, as_tensor, member_id, root_within, splits_of, with_rows
from .requests.execution import in_order, is_complex, last_in_order, run

_ANY_DEVICE = contextlib.nullcontext()


@documented
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
    """Returns the reduction of all ranks' tensors. Differentiable for Average and Sum.

    Args:
        tensor: a tensor, a variable or IndexedSlices, of any shape. All ranks pass the same shape and dtype, but
            IndexedSlices may have different numbers of rows.

    Returns:
        A tensor of the same shape and dtype. For IndexedSlices, IndexedSlices of all ranks' rows: an index of several
        ranks occurs several times in it.

    Examples:
        >>> hvd.allreduce(tf.constant([1.0, 2.0]), op=hvd.Sum, name="loss").numpy()  # by hvd.size() ranks
        array([1., 2.], dtype=float32)
    """
    chosen = resolve_op(op, average)
    factors = (float(prescale_factor), float(postscale_factor))
    if type(tensor) is not EagerTensor and isinstance(tensor, tf.IndexedSlices):
        with _on(device_sparse):
            return _allreduce_sparse(tensor, chosen, name, factors, process_set, ignore_name_scope)
    with _on(device_dense):
        return reduce_dense([as_tensor(tensor)], chosen, name, factors, process_set, compression, ignore_name_scope)[0]


@documented
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
    """Reduces several tensors as one unit: if one of them fails, all fail. Differentiable for Average and Sum.

    Each IndexedSlices among them is gathered separately.

    Returns:
        Tensors of the same shapes and dtypes.

    Examples:
        >>> reduced = hvd.grouped_allreduce([tf.constant([1.0]), tf.constant([2, 3])], op=hvd.Sum)
        >>> [tensor.numpy().tolist() for tensor in reduced]
        [[1.0], [2, 3]]
    """
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
    collectives.check_op("allreduce", op, tensors, is_complex)
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


@documented
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns all ranks' tensors, concatenated along dimension 0 in the order of ranks. Differentiable.

    Returns:
        A tensor of the same dtype on all ranks. Its dimension 0 is the sum of all ranks' dimensions 0.

    Examples:
        >>> hvd.allgather(tf.constant([[1, 2], [3, 4]])).numpy()  # all rows of all ranks
        array([[1, 2],
               [3, 4]], dtype=int32)
    """
    request = request_of("allgather", name, member_id(process_set), whole_name=ignore_name_scope)
    return run(request, [with_rows("allgather", tensor)])[0]


@documented
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Gathers several tensors as one unit: if one of them fails, all fail. Differentiable.

    Returns:
        For each tensor, all ranks' rows in a new tensor. An empty list for an empty list.

    Examples:
        >>> gathered = hvd.grouped_allgather([tf.constant([1]), tf.constant([2.0, 3.0])])
        >>> [tensor.numpy().tolist() for tensor in gathered]
        [[1], [2.0, 3.0]]
    """
    if not tensors:
        return list(tensors)
    request = request_of("allgather", name, member_id(process_set), grouped=True, whole_name=ignore_name_scope)
    return run(request, [with_rows("grouped_allgather", tensor) for tensor in tensors])


@documented
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the tensor of `root_rank` on every rank. Differentiable.

    Returns:
        A tensor of the same shape and dtype.

    Examples:
        >>> hvd.broadcast(tf.constant([1.0, 2.0]), root_rank=0).numpy()
        array([1., 2.], dtype=float32)
    """
    set_id = member_id(process_set)
    root = root_within(root_rank, process_set)
    request = request_of("broadcast", name, set_id, root=root, whole_name=ignore_name_scope)
    return run(request, [as_tensor(tensor)])[0]


@documented
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends `splits[r]` rows to rank r of the process set, and returns the rows that the ranks send to this one.

    Differentiable.

    Returns:
        The received rows in the order of the sending ranks. If `splits` are given: a pair of these rows and a tensor of
        dtype int32 with the number of rows from each rank.

    Examples:
        >>> rows, counts = hvd.alltoall(tf.constant([1.0, 2.0, 3.0]), splits=[2])  # the third row is not sent
        >>> rows.numpy(), counts.numpy().tolist()
        (array([1., 2.], dtype=float32), [2])
    """
    request = request_of("alltoall", name, member_id(process_set), whole_name=ignore_name_scope)
    source = with_rows("alltoall", tensor)
    if splits is None:
        no_splits = _no_splits_eagerly() if tf.executing_eagerly() else tf.zeros([0], tf.int32)
        return run(request, [source], no_splits)[0]
    received, received_splits = run(request, [source], splits_of(splits))
    return received, received_splits


@functools.cache
def _no_splits_eagerly() -> Any:
    return tf.zeros([0], tf.int32)


@documented
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
    """Returns this rank's rows of the reduction of all ranks' tensors. Differentiable.

    Returns:
        A tensor of the same dtype. Dimension 0 is divided among the ranks; if it does not divide, the first ranks get
        one more row.

    Examples:
        >>> hvd.reducescatter(tf.constant([1.0, 2.0]), op=hvd.Sum).numpy()  # one rank gets all rows
        array([1., 2.], dtype=float32)
    """
    factors = (float(prescale_factor), float(postscale_factor))
    return _reducescatter([tensor], device_dense, compression, op, name, process_set, ignore_name_scope, factors)[0]


@documented
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Does a reducescatter of several tensors as one unit: if one of them fails, all fail. Differentiable.

    Returns:
        For each tensor, this rank's rows of the reduction. An empty list for an empty list.

    Examples:
        >>> shares = hvd.grouped_reducescatter([tf.constant([1.0]), tf.constant([2.0, 3.0])])
        >>> [tensor.numpy().tolist() for tensor in shares]
        [[1.0], [2.0, 3.0]]
    """
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
    """Blocks until every rank has joined. Contributes zeros to the other ranks' allreduces meanwhile.

    Returns:
        The last rank that joined, as a tensor of dtype int32.

    Examples:
        >>> int(hvd.join())
        0
    """
    if tf.executing_eagerly():
        return tf.constant(collectives.join(), tf.int32)
    if xla.is_compiling():
        return xla.without_tensors(request_of("join"))
    with in_order():
        last = operations.perseus_join(tensor_name="join")
        last_in_order(last.op)
    return last


def barrier(process_set: ProcessSet = global_process_set) -> Any:
    """Blocks until all ranks of the set have called it.

    Args:
        process_set: the ranks that wait for each other. The default is all ranks of the job.

    Returns:
        None, or in a graph the operation that blocks.

    Raises:
        ValueError: this rank is not in `process_set`, or the set is not registered.
        HorovodInternalError: a rank has ended, or `init` was not called.

    Examples:
        >>> hvd.barrier()
    """
    if tf.executing_eagerly():
        collectives.barrier(process_set)
        return None
    if xla.is_compiling():
        return xla.without_tensors(request_of("barrier", set_id=member_id(process_set))).op
    with in_order():
        met = operations.perseus_barrier(process_set_id=member_id(process_set))
        last_in_order(met)
    return met


__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "reducescatter",
]
