"""The collectives that move data: broadcast in MXNet's engine, and allgather and alltoall, which block."""

from __future__ import annotations

from collections.abc import Sequence

import mxnet as mx
import numpy as np

from perseus_like.collectives import Collectives
from perseus_like.collectives.arguments import member_id, root_within
from perseus_like.collectives.automatic_names import names
from perseus_like.docstrings import documented
from perseus_like.errors import HorovodInternalError
from perseus_like.process_sets import ProcessSet, global_process_set
from perseus_like.tables import Verb

from .engine import documented_for_engine, push
from .tensors import Array, checked, new_like, number_of, tensors

# These verbs wait for the result, because other ranks determine its size.
_waiting: Collectives[Array] = Collectives(tensors)


class MXNetValueError(ValueError, mx.base.MXNetError):  # type: ignore[misc]
    """Wrong arguments of an alltoall. It is a ValueError, and an MXNetError as in Horovod."""


def _broadcast(
    tensor: Array, output: Array, root_rank: int, name: str | None, priority: int, process_set: ProcessSet
) -> Array:
    set_id = member_id(process_set)
    root = root_within(root_rank, process_set)
    number_of(checked(tensor))

    def start(full: str) -> None:
        push(full, Verb.broadcast, [tensor], [output], set_id, priority, root=root)

    names.submit("broadcast", name, set_id, start)
    return output


@documented_for_engine
def broadcast(
    tensor: Array,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Returns the array of `root_rank` on every rank.

    Returns:
        A new array of the same shape and dtype.

    Examples:
        >>> hvd.broadcast(mx.nd.array([1.0, 2.0]), root_rank=0).asnumpy()
        array([1., 2.], dtype=float32)
    """
    return _broadcast(tensor, new_like([tensor])[0], root_rank, name, priority, process_set)


@documented_for_engine
def broadcast_(
    tensor: Array,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Replaces the elements of an array by those of `root_rank`.

    Returns:
        `tensor` itself.

    Examples:
        >>> weights = mx.nd.array([1.0, 2.0])
        >>> hvd.broadcast_(weights, root_rank=0) is weights
        True
    """
    return _broadcast(tensor, tensor, root_rank, name, priority, process_set)


@documented
def allgather(
    tensor: Array, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> Array:
    """Returns all ranks' arrays, concatenated along dimension 0 in the order of ranks.

    Blocks until the size of the result is known.

    Returns:
        A new array of the same dtype on all ranks. Its dimension 0 is the sum of all ranks' dimensions 0.

    Examples:
        >>> hvd.allgather(mx.nd.array([1.0, 2.0])).asnumpy()  # all rows of all ranks
        array([1., 2.], dtype=float32)
    """
    return _waiting.allgather(tensor, name, process_set).result()


@documented
def grouped_allgather(
    tensors: Sequence[Array],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Sequence[Array]:
    """Gathers several arrays as one unit: if one of them fails, all fail.

    Blocks until the size of the result is known.

    Returns:
        For each array, all ranks' rows in a new array. An empty list for an empty list.

    Examples:
        >>> [each.asnumpy().tolist() for each in hvd.grouped_allgather([mx.nd.array([1.0]), mx.nd.array([2.0, 3.0])])]
        [[1.0], [2.0, 3.0]]
    """
    if not tensors:
        return tensors
    return _waiting.grouped_allgather(tensors, name, process_set).result()


@documented
def alltoall(
    tensor: Array,
    splits: Sequence[int] | Array | None = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Array | tuple[Array, Array]:
    """Sends `splits[r]` rows to rank r of the process set, and returns the rows that the ranks send to this one.

    Blocks until it is done.

    Returns:
        The received rows in the order of the sending ranks. If `splits` are given: a pair of these rows and an array
        of dtype int32 with the number of rows from each rank.

    Raises:
        MXNetValueError: `splits` do not fit the array and the process set, or are not whole numbers.
        ValueError: the dtype is not supported, or this rank is not in `process_set`.
        HorovodInternalError: the collective failed.

    Examples:
        >>> rows, counts = hvd.alltoall(mx.nd.array([1.0, 2.0, 3.0]), splits=[2])  # the third row is not sent
        >>> rows.asnumpy(), counts.asnumpy().tolist()
        (array([1., 2.], dtype=float32), [2])
    """
    plain = splits.asnumpy().tolist() if isinstance(splits, mx.nd.NDArray) else splits
    try:
        received, rows = _waiting.alltoall(tensor, plain, name, process_set).result()
    except HorovodInternalError:
        raise
    except ValueError as error:
        raise MXNetValueError(str(error)) from None
    if splits is None:
        return received
    return received, mx.nd.array(np.array(rows, np.int32), dtype=np.int32)


__all__ = [
    "allgather",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
]
