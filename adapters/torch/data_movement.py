"""Broadcast, allgather and alltoall: blocking and differentiable, asynchronous (`_async`), in place (an underscore)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

import torch

from perseus_like.collectives.handle import Handle, handles
from perseus_like.docstrings import documented
from perseus_like.process_sets import ProcessSet, global_process_set

from .autograd import HorovodAllgather, HorovodAlltoall, HorovodBroadcast, HorovodGroupedAllgather, differentiable
from .tensors import collectives

Tensor = torch.Tensor
Splits = Sequence[int] | torch.Tensor | None


@documented
def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Returns the tensor of `root_rank` on every rank. Differentiable.

    Returns:
        A new tensor of the same shape and dtype.

    Examples:
        >>> hvd.broadcast(torch.tensor([1.0, 2.0]), root_rank=0)
        tensor([1., 2.])
    """
    if differentiable(tensor):
        result: Tensor = HorovodBroadcast.apply(tensor, root_rank, name, process_set)  # type: ignore[no-untyped-call]
        return result
    return collectives.broadcast(tensor, root_rank, name, process_set).result()


@documented
def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[Tensor]:
    """Starts a broadcast, and returns without waiting for the other ranks.

    Returns:
        The handle for `poll` and `synchronize`, which returns a new tensor of the same shape and dtype.

    Examples:
        >>> handle = hvd.broadcast_async(torch.tensor([1.0, 2.0]), root_rank=0)
        >>> hvd.synchronize(handle)
        tensor([1., 2.])
    """
    return handles.add(collectives.broadcast(tensor, root_rank, name, process_set))


@documented
def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Replaces the elements of a tensor by those of `root_rank`.

    Returns:
        `tensor` itself.

    Examples:
        >>> weights = torch.tensor([1.0, 2.0])
        >>> hvd.broadcast_(weights, root_rank=0) is weights
        True
    """
    return collectives.broadcast(tensor, root_rank, name, process_set, in_place=True).result()


@documented
def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[Tensor]:
    """Starts a broadcast in place, and returns without waiting for the other ranks.

    Until the handle is synchronized, the tensor must not be read or changed.

    Returns:
        The handle for `poll` and `synchronize`, which returns `tensor` itself.

    Examples:
        >>> weights = torch.tensor([1.0, 2.0])
        >>> hvd.synchronize(hvd.broadcast_async_(weights, root_rank=0)) is weights
        True
    """
    return handles.add(collectives.broadcast(tensor, root_rank, name, process_set, in_place=True))


@documented
def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tensor:
    """Returns all ranks' tensors, concatenated along dimension 0 in the order of ranks. Differentiable.

    Returns:
        A new tensor of the same dtype on all ranks. Its dimension 0 is the sum of all ranks' dimensions 0.

    Examples:
        >>> hvd.allgather(torch.tensor([[1, 2], [3, 4]]))  # all rows of all ranks
        tensor([[1, 2],
                [3, 4]])
    """
    if differentiable(tensor):
        result: Tensor = HorovodAllgather.apply(tensor, name, process_set)  # type: ignore[no-untyped-call]
        return result
    return collectives.allgather(tensor, name, process_set).result()


@documented
def allgather_async(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[Tensor]:
    """Starts an allgather, and returns without waiting for the other ranks.

    Returns:
        The handle for `poll` and `synchronize`, which returns all ranks' rows in a new tensor.

    Examples:
        >>> hvd.synchronize(hvd.allgather_async(torch.tensor([1, 2])))
        tensor([1, 2])
    """
    return handles.add(collectives.allgather(tensor, name, process_set))


@documented
def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> tuple[Tensor, ...]:
    """Gathers several tensors as one unit: if one of them fails, all fail. Differentiable.

    Returns:
        For each tensor, all ranks' rows in a new tensor.

    Examples:
        >>> hvd.grouped_allgather([torch.tensor([1]), torch.tensor([2.0, 3.0])])
        (tensor([1]), tensor([2., 3.]))
    """
    if differentiable(*tensors):
        result: tuple[Tensor, ...] = HorovodGroupedAllgather.apply(  # type: ignore[no-untyped-call]
            name, process_set, *tensors
        )
        return result
    return tuple(collectives.grouped_allgather(tensors, name, process_set).result())


@documented
def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[tuple[Tensor, ...]]:
    """Starts an allgather of several tensors as one unit, and returns without waiting for the other ranks.

    Returns:
        The handle for `poll` and `synchronize`, which returns a new tensor for each tensor.

    Examples:
        >>> hvd.synchronize(hvd.grouped_allgather_async([torch.tensor([1]), torch.tensor([2.0, 3.0])]))
        (tensor([1]), tensor([2., 3.]))
    """
    return handles.add(collectives.grouped_allgather(tensors, name, process_set).then(tuple))


def _plain_splits(splits: Splits) -> Sequence[int] | None:
    if not isinstance(splits, torch.Tensor):
        return splits
    if splits.dtype is not torch.int32:
        raise ValueError(f"alltoall: splits must be an int32 tensor or a list, not a {splits.dtype} tensor")
    return splits.tolist()


@overload
def alltoall(
    tensor: Tensor, splits: None = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor: ...
@overload
def alltoall(
    tensor: Tensor,
    splits: Sequence[int] | Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tuple[Tensor, Tensor]: ...
@documented
def alltoall(
    tensor: Tensor, splits: Splits = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor | tuple[Tensor, Tensor]:
    """Sends `splits[r]` rows to rank r of the process set, and returns the rows that the ranks send to this one.

    Differentiable.

    Returns:
        The received rows in the order of the sending ranks. If `splits` are given: a pair of these rows and a tensor
        of dtype int32 with the number of rows from each rank.

    Examples:
        >>> rows, counts = hvd.alltoall(torch.tensor([1.0, 2.0, 3.0]), splits=[2])  # the third row is not sent
        >>> rows, counts.tolist()
        (tensor([1., 2.]), [2])
    """
    plain = _plain_splits(splits)
    pair: tuple[Tensor, Tensor]
    if differentiable(tensor):
        pair = HorovodAlltoall.apply(tensor, plain, name, process_set)  # type: ignore[no-untyped-call]
    else:
        pair = collectives.alltoall(tensor, plain, name, process_set).then(_with_counts(splits)).result()
    return pair[0] if splits is None else pair


@documented
def alltoall_async(
    tensor: Tensor, splits: Splits = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[tuple[Tensor, Tensor]]:
    """Starts an alltoall, and returns without waiting for the other ranks.

    Returns:
        The handle for `poll` and `synchronize`, which returns the pair of the received rows and the number of rows
        from each rank (int32), also without `splits`.

    Examples:
        >>> rows, counts = hvd.synchronize(hvd.alltoall_async(torch.tensor([1.0, 2.0])))
        >>> rows, counts.tolist()
        (tensor([1., 2.]), [2])
    """
    pending = collectives.alltoall(tensor, _plain_splits(splits), name, process_set)
    return handles.add(pending.then(_with_counts(splits)))


def _with_counts(splits: Splits) -> Callable[[tuple[Tensor, list[int]]], tuple[Tensor, Tensor]]:
    device = splits.device if isinstance(splits, torch.Tensor) else None
    return lambda pair: (pair[0], torch.tensor(pair[1], dtype=torch.int32, device=device))


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
