"""The collectives on NumPy arrays: blocking, asynchronous (`_async`), and in place (a trailing underscore)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from perseus_like.collectives import Average, Collectives, resolve_op
from perseus_like.compression import NoneCompressor, wire_of
from perseus_like.documentation import documented
from perseus_like.handle import CollectiveHandle, Handle, handles
from perseus_like.process_sets import ProcessSet, global_process_set

from .tensors import Array, Plain, S, tensors

Counts = Array[np.int32]
Splits = Sequence[int] | Array[Any] | None
Compressor = Any

_verbs: Collectives[Array[Any]] = Collectives(tensors)

poll = handles.poll
synchronize = handles.synchronize


def _start_allreduce(
    array: Array[Any],
    average: bool | None,
    name: str | None,
    op: int | None,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    compression: Compressor = NoneCompressor,
    in_place: bool = False,
) -> CollectiveHandle[Array[Any]]:
    chosen = resolve_op(op, average)
    wire = wire_of(compression)
    return _verbs.allreduce(array, chosen, name, prescale_factor, postscale_factor, process_set, wire, in_place)


def _start_grouped_allreduce(
    arrays: Sequence[Array[Any]],
    average: bool | None,
    name: str | None,
    op: int | None,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    compression: Compressor = NoneCompressor,
    in_place: bool = False,
) -> CollectiveHandle[list[Array[Any]]]:
    chosen = resolve_op(op, average)
    wire = wire_of(compression)
    return _verbs.grouped_allreduce(
        arrays, chosen, name, prescale_factor, postscale_factor, process_set, wire, in_place
    )


@documented
def allreduce(
    tensor: Array[S] | Plain,
    average: bool | None = None,
    name: str | None = None,
    compression: Compressor = NoneCompressor,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array[S]:
    """Returns the reduction of all ranks' arrays.

    Returns:
        A new array of the same shape and dtype. An average of integers is rounded toward zero.

    Examples:
        >>> hvd.allreduce(np.array([1.0, 2.0]), op=hvd.Sum, name="loss")  # by hvd.size() ranks
        array([1., 2.])
    """
    array = np.asarray(tensor)
    return _start_allreduce(
        array, average, name, op, prescale_factor, postscale_factor, process_set, compression
    ).result()


@documented
def allreduce_async(
    tensor: Array[S] | Plain,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[Array[S]]:
    """Starts an allreduce, and returns without waiting for the other ranks.

    Returns:
        The handle for `poll` and `synchronize`, which returns a new array of the same shape and dtype.

    Examples:
        >>> handle = hvd.allreduce_async(np.array([1.0, 2.0]), name="gradient")
        >>> hvd.synchronize(handle)
        array([1., 2.])
    """
    array = np.asarray(tensor)
    return handles.add(_start_allreduce(array, average, name, op, prescale_factor, postscale_factor, process_set))


@documented
def allreduce_(
    tensor: Array[S],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array[S]:
    """Replaces the elements of an array by the reduction of all ranks' arrays.

    Returns:
        `tensor` itself.

    Examples:
        >>> array = np.array([1.0, 2.0])
        >>> hvd.allreduce_(array, op=hvd.Sum) is array
        True
    """
    return _start_allreduce(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set, in_place=True
    ).result()


@documented
def allreduce_async_(
    tensor: Array[S],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[Array[S]]:
    """Starts an allreduce in place, and returns without waiting for the other ranks.

    Until the handle is synchronized, the array must not be read or changed.

    Returns:
        The handle for `poll` and `synchronize`, which returns `tensor` itself.

    Examples:
        >>> array = np.array([1.0, 2.0])
        >>> handle = hvd.allreduce_async_(array, name="gradient")
        >>> hvd.synchronize(handle) is array
        True
    """
    return handles.add(
        _start_allreduce(tensor, average, name, op, prescale_factor, postscale_factor, process_set, in_place=True)
    )


@documented
def grouped_allreduce(
    tensors: Sequence[Array[S] | Plain],
    average: bool | None = None,
    name: str | None = None,
    compression: Compressor = NoneCompressor,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array[S]]:
    """Reduces several arrays as one unit: if one of them fails, all fail.

    Returns:
        New arrays of the same shapes and dtypes.

    Examples:
        >>> hvd.grouped_allreduce([np.array([1.0]), np.array([2, 3])], op=hvd.Max)
        [array([1.]), array([2, 3])]
    """
    arrays = [np.asarray(tensor) for tensor in tensors]
    return _start_grouped_allreduce(
        arrays, average, name, op, prescale_factor, postscale_factor, process_set, compression
    ).result()


@documented
def grouped_allreduce_async(
    tensors: Sequence[Array[S] | Plain],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[Array[S]]]:
    """Starts an allreduce of several arrays as one unit, and returns without waiting for the other ranks.

    Returns:
        The handle for `poll` and `synchronize`, which returns new arrays of the same shapes and dtypes.

    Examples:
        >>> handle = hvd.grouped_allreduce_async([np.array([1.0]), np.array([2, 3])])
        >>> hvd.synchronize(handle)
        [array([1.]), array([2, 3])]
    """
    arrays = [np.asarray(tensor) for tensor in tensors]
    return handles.add(
        _start_grouped_allreduce(arrays, average, name, op, prescale_factor, postscale_factor, process_set)
    )


@documented
def grouped_allreduce_(
    tensors: Sequence[Array[S]],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array[S]]:
    """Replaces the elements of several arrays by their reductions, as one unit.

    Returns:
        The same arrays.

    Examples:
        >>> arrays = [np.array([1.0]), np.array([2, 3])]
        >>> hvd.grouped_allreduce_(arrays)[1] is arrays[1]
        True
    """
    return _start_grouped_allreduce(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set, in_place=True
    ).result()


@documented
def grouped_allreduce_async_(
    tensors: Sequence[Array[S]],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[Array[S]]]:
    """Starts an allreduce of several arrays in place, and returns without waiting for the other ranks.

    Until the handle is synchronized, the arrays must not be read or changed.

    Returns:
        The handle for `poll` and `synchronize`, which returns the same arrays.

    Examples:
        >>> handle = hvd.grouped_allreduce_async_([np.array([1.0]), np.array([2, 3])])
        >>> hvd.synchronize(handle)
        [array([1.]), array([2, 3])]
    """
    return handles.add(
        _start_grouped_allreduce(
            tensors, average, name, op, prescale_factor, postscale_factor, process_set, in_place=True
        )
    )


@documented
def broadcast(
    tensor: Array[S] | Plain, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array[S]:
    """Returns the array of `root_rank` on every rank.

    Returns:
        A new array of the same shape and dtype.

    Examples:
        >>> hvd.broadcast(np.array([1.0, 2.0]), root_rank=0)
        array([1., 2.])
    """
    return _verbs.broadcast(np.asarray(tensor), root_rank, name, process_set).result()


@documented
def broadcast_async(
    tensor: Array[S] | Plain, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[Array[S]]:
    """Starts a broadcast, and returns without waiting for the other ranks.

    Returns:
        The handle for `poll` and `synchronize`, which returns a new array of the same shape and dtype.

    Examples:
        >>> handle = hvd.broadcast_async(np.array([1.0, 2.0]), root_rank=0)
        >>> hvd.synchronize(handle)
        array([1., 2.])
    """
    return handles.add(_verbs.broadcast(np.asarray(tensor), root_rank, name, process_set))


@documented
def broadcast_(
    tensor: Array[S], root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array[S]:
    """Replaces the elements of an array by those of `root_rank`.

    Returns:
        `tensor` itself.

    Examples:
        >>> weights = np.array([1.0, 2.0])
        >>> hvd.broadcast_(weights, root_rank=0) is weights
        True
    """
    return _verbs.broadcast(tensor, root_rank, name, process_set, in_place=True).result()


@documented
def broadcast_async_(
    tensor: Array[S], root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[Array[S]]:
    """Starts a broadcast in place, and returns without waiting for the other ranks.

    Until the handle is synchronized, the array must not be read or changed.

    Returns:
        The handle for `poll` and `synchronize`, which returns `tensor` itself.

    Examples:
        >>> weights = np.array([1.0, 2.0])
        >>> hvd.synchronize(hvd.broadcast_async_(weights, root_rank=0)) is weights
        True
    """
    return handles.add(_verbs.broadcast(tensor, root_rank, name, process_set, in_place=True))


@documented
def allgather(
    tensor: Array[S] | Plain, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array[S]:
    """Returns all ranks' arrays, concatenated along dimension 0 in the order of ranks.

    Returns:
        A new array of the same dtype on all ranks. Its dimension 0 is the sum of all ranks' dimensions 0.

    Examples:
        >>> hvd.allgather(np.array([[1, 2], [3, 4]]))  # all rows of all ranks
        array([[1, 2],
               [3, 4]])
    """
    return _verbs.allgather(np.asarray(tensor), name, process_set).result()


@documented
def allgather_async(
    tensor: Array[S] | Plain, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[Array[S]]:
    """Starts an allgather, and returns without waiting for the other ranks.

    Returns:
        The handle for `poll` and `synchronize`, which returns all ranks' rows in a new array.

    Examples:
        >>> hvd.synchronize(hvd.allgather_async(np.array([1, 2])))
        array([1, 2])
    """
    return handles.add(_verbs.allgather(np.asarray(tensor), name, process_set))


@documented
def grouped_allgather(
    tensors: Sequence[Array[S] | Plain], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Array[S]]:
    """Gathers several arrays as one unit: if one of them fails, all fail.

    Returns:
        For each array, all ranks' rows in a new array.

    Examples:
        >>> hvd.grouped_allgather([np.array([1]), np.array([2.0, 3.0])])
        [array([1]), array([2., 3.])]
    """
    return _verbs.grouped_allgather([np.asarray(tensor) for tensor in tensors], name, process_set).result()


@documented
def grouped_allgather_async(
    tensors: Sequence[Array[S] | Plain], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[list[Array[S]]]:
    """Starts an allgather of several arrays as one unit, and returns without waiting for the other ranks.

    Returns:
        The handle for `poll` and `synchronize`, which returns a new array for each array.

    Examples:
        >>> hvd.synchronize(hvd.grouped_allgather_async([np.array([1]), np.array([2.0, 3.0])]))
        [array([1]), array([2., 3.])]
    """
    return handles.add(_verbs.grouped_allgather([np.asarray(tensor) for tensor in tensors], name, process_set))


@overload
def alltoall(
    tensor: Array[S] | Plain, splits: None = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array[S]: ...
@overload
def alltoall(
    tensor: Array[S] | Plain,
    splits: Sequence[int] | Array[Any],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tuple[Array[S], Counts]: ...
@documented
def alltoall(
    tensor: Array[S] | Plain,
    splits: Splits = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array[S] | tuple[Array[S], Counts]:
    """Sends `splits[r]` rows to rank r of the process set, and returns the rows that the ranks send to this one.

    Returns:
        The received rows in the order of the sending ranks. If `splits` are given: a pair of these rows and an array
        of dtype int32 with the number of rows from each rank.

    Examples:
        >>> rows, counts = hvd.alltoall(np.array([1.0, 2.0, 3.0]), splits=[2])  # the third row is not sent
        >>> rows, counts.tolist()
        (array([1., 2.]), [2])
    """
    pair = _start_alltoall(tensor, splits, name, process_set).result()
    return pair[0] if splits is None else pair


@documented
def alltoall_async(
    tensor: Array[S] | Plain,
    splits: Splits = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[tuple[Array[S], Counts]]:
    """Starts an alltoall, and returns without waiting for the other ranks.

    Returns:
        The handle for `poll` and `synchronize`, which returns the pair of the received rows and the number of rows
        from each rank (int32), also without `splits`.

    Examples:
        >>> rows, counts = hvd.synchronize(hvd.alltoall_async(np.array([1.0, 2.0])))
        >>> rows, counts.tolist()
        (array([1., 2.]), [2])
    """
    return handles.add(_start_alltoall(tensor, splits, name, process_set))


def _start_alltoall(
    tensor: Array[S] | Plain, splits: Splits, name: str | None, process_set: ProcessSet
) -> CollectiveHandle[tuple[Array[Any], Counts]]:
    plain = splits.tolist() if isinstance(splits, np.ndarray) else splits
    pending = _verbs.alltoall(np.asarray(tensor), plain, name, process_set)
    return pending.then(lambda pair: (pair[0], np.array(pair[1], np.int32)))


@documented
def reducescatter(
    tensor: Array[S] | Plain,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Array[S]:
    """Returns this rank's rows of the reduction of all ranks' arrays.

    Returns:
        A new array of the same dtype. Dimension 0 is divided among the ranks; if it does not divide, the first ranks
        get one more row.

    Examples:
        >>> hvd.reducescatter(np.array([[1.0, 2.0], [3.0, 4.0]]), op=hvd.Sum)  # one rank gets all rows
        array([[1., 2.],
               [3., 4.]])
    """
    return _verbs.reduce_scatter(
        np.asarray(tensor), resolve_op(op), name, prescale_factor, postscale_factor, process_set
    ).result()


@documented
def reducescatter_async(
    tensor: Array[S] | Plain,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[Array[S]]:
    """Starts a reducescatter, and returns without waiting for the other ranks.

    Returns:
        The handle for `poll` and `synchronize`, which returns this rank's rows in a new array.

    Examples:
        >>> hvd.synchronize(hvd.reducescatter_async(np.array([1.0, 2.0])))
        array([1., 2.])
    """
    return handles.add(
        _verbs.reduce_scatter(np.asarray(tensor), resolve_op(op), name, prescale_factor, postscale_factor, process_set)
    )


@documented
def grouped_reducescatter(
    tensors: Sequence[Array[S] | Plain],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Array[S]]:
    """Does a reducescatter of several arrays as one unit: if one of them fails, all fail.

    Returns:
        For each array, this rank's rows of the reduction.

    Examples:
        >>> hvd.grouped_reducescatter([np.array([1.0]), np.array([2.0, 3.0])])
        [array([1.]), array([2., 3.])]
    """
    arrays = [np.asarray(tensor) for tensor in tensors]
    return _verbs.grouped_reduce_scatter(
        arrays, resolve_op(op), name, prescale_factor, postscale_factor, process_set
    ).result()


@documented
def grouped_reducescatter_async(
    tensors: Sequence[Array[S] | Plain],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[list[Array[S]]]:
    """Starts a reducescatter of several arrays as one unit, and returns without waiting for the other ranks.

    Returns:
        The handle for `poll` and `synchronize`, which returns this rank's rows for each array.

    Examples:
        >>> hvd.synchronize(hvd.grouped_reducescatter_async([np.array([1.0]), np.array([2.0, 3.0])]))
        [array([1.]), array([2., 3.])]
    """
    arrays = [np.asarray(tensor) for tensor in tensors]
    return handles.add(
        _verbs.grouped_reduce_scatter(arrays, resolve_op(op), name, prescale_factor, postscale_factor, process_set)
    )


__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "synchronize",
]
