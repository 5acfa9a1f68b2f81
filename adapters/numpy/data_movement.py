"""Broadcast, allgather and alltoall: blocking, asynchronous (`_async`), and in place (a trailing underscore)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from perseus_like.collectives.handle import CollectiveHandle, Handle, handles
from perseus_like.docstrings import documented
from perseus_like.process_sets import ProcessSet, global_process_set

from .tensors import Array, Plain, S, verbs

Counts = Array[np.int32]
Splits = Sequence[int] | Array[Any] | None


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
    return verbs.broadcast(np.asarray(tensor), root_rank, name, process_set).result()


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
    return handles.add(verbs.broadcast(np.asarray(tensor), root_rank, name, process_set))


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
    return verbs.broadcast(tensor, root_rank, name, process_set, in_place=True).result()


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
    return handles.add(verbs.broadcast(tensor, root_rank, name, process_set, in_place=True))


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
    return verbs.allgather(np.asarray(tensor), name, process_set).result()


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
    return handles.add(verbs.allgather(np.asarray(tensor), name, process_set))


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
    return verbs.grouped_allgather([np.asarray(tensor) for tensor in tensors], name, process_set).result()


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
    return handles.add(verbs.grouped_allgather([np.asarray(tensor) for tensor in tensors], name, process_set))


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
    pending = verbs.alltoall(np.asarray(tensor), plain, name, process_set)
    return pending.then(lambda pair: (pair[0], np.array(pair[1], np.int32)))


__all__ = [
    "allgather",
    "allgather_async",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
]
