"""The verbs on torch tensors: blocking and differentiable, asynchronous (`_async`), in place (an underscore)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import torch

from perseus_like.collectives import Average, Op, resolve_op
from perseus_like.collectives import join as _join
from perseus_like.compression import Compressed, NoneCompressor, is_called, wire_of
from perseus_like.documentation import documented
from perseus_like.handle import CollectiveHandle, Handle, handles
from perseus_like.process_sets import ProcessSet, global_process_set

from .autograd import (
    HorovodAllgather,
    HorovodAllreduce,
    HorovodAlltoall,
    HorovodBroadcast,
    HorovodGroupedAllgather,
    HorovodGroupedAllreduce,
    HorovodGroupedReducescatter,
    HorovodReducescatter,
    verbs,
)

Tensor = torch.Tensor
Splits = Sequence[int] | torch.Tensor | None

synchronize = handles.synchronize
poll = handles.poll


def join(device: int = -1) -> int:
    """Blocks until every rank has joined. Contributes zeros to the other ranks' allreduces meanwhile.

    A rank calls it when it has no more batches, so that the others can finish theirs.

    Args:
        device: has no effect; it is an argument of Horovod.

    Returns:
        The last rank that joined.

    Raises:
        HorovodInternalError: a rank has ended, or `init` was not called.

    Examples:
        >>> hvd.join()
        0
    """
    return _join()


def _differentiable(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(getattr(tensor, "requires_grad", False) for tensor in tensors)


@documented
def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = NoneCompressor,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Returns the reduction of all ranks' tensors. Differentiable for Average and Sum.

    Returns:
        A new tensor of the same shape and dtype. An average of integers is rounded toward zero.

    Examples:
        >>> hvd.allreduce(torch.tensor([1.0, 2.0]), op=hvd.Sum, name="loss")  # by hvd.size() ranks
        tensor([1., 2.])
    """
    if not is_called(compression):
        wire = wire_of(compression)
        if _differentiable(tensor):
            result: Tensor = HorovodAllreduce.apply(  # type: ignore[no-untyped-call]
                tensor, average, name, op, prescale_factor, postscale_factor, process_set, wire
            )
            return result
        chosen = resolve_op(op, average)
        factors = (prescale_factor, postscale_factor, process_set, wire)
        return verbs.allreduce(tensor, chosen, name, *factors, wait=True).result()
    small = Compressed(compression, [tensor])
    reduced: Tensor = HorovodAllreduce.apply(  # type: ignore[no-untyped-call]
        small.tensors[0], average, name, op, prescale_factor, postscale_factor, process_set
    )
    return small.restore([reduced])[0]  # type: ignore[no-any-return]


@documented
def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[Tensor]:
    """Starts an allreduce, and returns without waiting for the other ranks.

    Returns:
        The handle for `poll` and `synchronize`, which returns a new tensor of the same shape and dtype.

    Examples:
        >>> handle = hvd.allreduce_async(torch.tensor([1.0, 2.0]), name="gradient")
        >>> hvd.synchronize(handle)
        tensor([1., 2.])
    """
    chosen = resolve_op(op, average)
    return handles.add(verbs.allreduce(tensor, chosen, name, prescale_factor, postscale_factor, process_set))


@documented
def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Replaces the elements of a tensor by the reduction of all ranks' tensors.

    Returns:
        `tensor` itself.

    Examples:
        >>> tensor = torch.tensor([1.0, 2.0])
        >>> hvd.allreduce_(tensor, op=hvd.Sum) is tensor
        True
    """
    chosen = resolve_op(op, average)
    return verbs.reduce_in_place(
        tensor, chosen, name, prescale_factor, postscale_factor, process_set, None, True
    ).result()


@documented
def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[Tensor]:
    """Starts an allreduce in place, and returns without waiting for the other ranks.

    Until the handle is synchronized, the tensor must not be read or changed.

    Returns:
        The handle for `poll` and `synchronize`, which returns `tensor` itself.

    Examples:
        >>> tensor = torch.tensor([1.0, 2.0])
        >>> handle = hvd.allreduce_async_(tensor, name="gradient")
        >>> hvd.synchronize(handle) is tensor
        True
    """
    chosen = op if type(op) is Op and average is None else resolve_op(op, average)
    return handles.add(verbs.reduce_in_place(tensor, chosen, name, prescale_factor, postscale_factor, process_set))


@documented
def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = NoneCompressor,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Reduces several tensors as one unit: if one of them fails, all fail. Differentiable for Average and Sum.

    Returns:
        New tensors of the same shapes and dtypes.

    Examples:
        >>> hvd.grouped_allreduce([torch.tensor([1.0]), torch.tensor([2, 3])], op=hvd.Max)
        [tensor([1.]), tensor([2, 3])]
    """
    if not _differentiable(*tensors) and not is_called(compression):
        factors = (prescale_factor, postscale_factor, process_set, wire_of(compression))
        return verbs.grouped_allreduce(tensors, resolve_op(op, average), name, *factors).result()
    if not tensors:
        raise ValueError("grouped_allreduce: the list of tensors is empty")
    # torch.autograd.Function cannot pass options beside a list of tensors, so here the tensors are cast in torch.
    small = Compressed(compression, tensors)
    reduced = HorovodGroupedAllreduce.apply(  # type: ignore[no-untyped-call]
        average, name, op, prescale_factor, postscale_factor, process_set, *small.tensors
    )
    return small.restore(reduced)


@documented
def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[Tensor]]:
    """Starts an allreduce of several tensors as one unit, and returns without waiting for the other ranks.

    Returns:
        The handle for `poll` and `synchronize`, which returns new tensors of the same shapes and dtypes.

    Examples:
        >>> handle = hvd.grouped_allreduce_async([torch.tensor([1.0]), torch.tensor([2, 3])])
        >>> hvd.synchronize(handle)
        [tensor([1.]), tensor([2, 3])]
    """
    chosen = resolve_op(op, average)
    return handles.add(verbs.grouped_allreduce(tensors, chosen, name, prescale_factor, postscale_factor, process_set))


@documented
def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> tuple[Tensor, ...]:
    """Replaces the elements of several tensors by their reductions, as one unit.

    Returns:
        The same tensors.

    Examples:
        >>> tensors = [torch.tensor([1.0]), torch.tensor([2, 3])]
        >>> hvd.grouped_allreduce_(tensors)[1] is tensors[1]
        True
    """
    started = _start_grouped_in_place(tensors, average, name, op, prescale_factor, postscale_factor, process_set)
    return started.result()


@documented
def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[tuple[Tensor, ...]]:
    """Starts an allreduce of several tensors in place, and returns without waiting for the other ranks.

    Until the handle is synchronized, the tensors must not be read or changed.

    Returns:
        The handle for `poll` and `synchronize`, which returns the same tensors.

    Examples:
        >>> handle = hvd.grouped_allreduce_async_([torch.tensor([1.0]), torch.tensor([2, 3])])
        >>> hvd.synchronize(handle)
        (tensor([1.]), tensor([2, 3]))
    """
    started = _start_grouped_in_place(tensors, average, name, op, prescale_factor, postscale_factor, process_set)
    return handles.add(started)


def _start_grouped_in_place(
    tensors: Sequence[Tensor],
    average: bool | None,
    name: str | None,
    op: int | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> CollectiveHandle[tuple[Tensor, ...]]:
    chosen = resolve_op(op, average)
    pending = verbs.grouped_allreduce(tensors, chosen, name, prescale, postscale, process_set, in_place=True)
    return pending.then(tuple)


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
    if _differentiable(tensor):
        result: Tensor = HorovodBroadcast.apply(tensor, root_rank, name, process_set)  # type: ignore[no-untyped-call]
        return result
    return verbs.broadcast(tensor, root_rank, name, process_set).result()


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
    return handles.add(verbs.broadcast(tensor, root_rank, name, process_set))


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
    return verbs.broadcast(tensor, root_rank, name, process_set, in_place=True).result()


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
    return handles.add(verbs.broadcast(tensor, root_rank, name, process_set, in_place=True))


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
    if _differentiable(tensor):
        result: Tensor = HorovodAllgather.apply(tensor, name, process_set)  # type: ignore[no-untyped-call]
        return result
    return verbs.allgather(tensor, name, process_set).result()


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
    return handles.add(verbs.allgather(tensor, name, process_set))


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
    if _differentiable(*tensors):
        result: tuple[Tensor, ...] = HorovodGroupedAllgather.apply(  # type: ignore[no-untyped-call]
            name, process_set, *tensors
        )
        return result
    return tuple(verbs.grouped_allgather(tensors, name, process_set).result())


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
    return handles.add(verbs.grouped_allgather(tensors, name, process_set).then(tuple))


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
    if _differentiable(tensor):
        pair = HorovodAlltoall.apply(tensor, plain, name, process_set)  # type: ignore[no-untyped-call]
    else:
        pair = verbs.alltoall(tensor, plain, name, process_set).then(_with_counts(splits)).result()
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
    pending = verbs.alltoall(tensor, _plain_splits(splits), name, process_set)
    return handles.add(pending.then(_with_counts(splits)))


def _with_counts(splits: Splits) -> Callable[[tuple[Tensor, list[int]]], tuple[Tensor, Tensor]]:
    device = splits.device if isinstance(splits, torch.Tensor) else None
    return lambda pair: (pair[0], torch.tensor(pair[1], dtype=torch.int32, device=device))


@documented
def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: Any = NoneCompressor,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Returns this rank's rows of the reduction of all ranks' tensors. Differentiable.

    Returns:
        A new tensor of the same dtype. Dimension 0 is divided among the ranks; if it does not divide, the first ranks
        get one more row.

    Examples:
        >>> hvd.reducescatter(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), op=hvd.Sum)  # one rank gets all rows
        tensor([[1., 2.],
                [3., 4.]])
    """
    small = Compressed(compression, [tensor])
    result: Tensor
    if _differentiable(*small.tensors):
        result = HorovodReducescatter.apply(  # type: ignore[no-untyped-call]
            small.tensors[0], name, op, process_set, prescale_factor, postscale_factor
        )
    else:
        rest = (resolve_op(op), name, prescale_factor, postscale_factor, process_set)
        result = verbs.reduce_scatter(small.tensors[0], *rest).result()
    return small.restore([result])[0]  # type: ignore[no-any-return]


@documented
def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[Tensor]:
    """Starts a reducescatter, and returns without waiting for the other ranks.

    Returns:
        The handle for `poll` and `synchronize`, which returns this rank's rows in a new tensor.

    Examples:
        >>> hvd.synchronize(hvd.reducescatter_async(torch.tensor([1.0, 2.0])))
        tensor([1., 2.])
    """
    return handles.add(
        verbs.reduce_scatter(tensor, resolve_op(op), name, prescale_factor, postscale_factor, process_set)
    )


@documented
def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: Any = NoneCompressor,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Does a reducescatter of several tensors as one unit: if one of them fails, all fail. Differentiable.

    Returns:
        For each tensor, this rank's rows of the reduction.

    Examples:
        >>> hvd.grouped_reducescatter([torch.tensor([1.0]), torch.tensor([2.0, 3.0])])
        [tensor([1.]), tensor([2., 3.])]
    """
    if not tensors:
        raise ValueError("grouped_reducescatter: the list of tensors is empty")
    small = Compressed(compression, tensors)
    shares: Sequence[Tensor]
    if _differentiable(*small.tensors):
        shares = HorovodGroupedReducescatter.apply(  # type: ignore[no-untyped-call]
            name, op, process_set, prescale_factor, postscale_factor, *small.tensors
        )
    else:
        rest = (resolve_op(op), name, prescale_factor, postscale_factor, process_set)
        shares = verbs.grouped_reduce_scatter(small.tensors, *rest).result()
    return small.restore(shares)


@documented
def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[list[Tensor]]:
    """Starts a reducescatter of several tensors as one unit, and returns without waiting for the other ranks.

    Returns:
        The handle for `poll` and `synchronize`, which returns this rank's rows for each tensor.

    Examples:
        >>> hvd.synchronize(hvd.grouped_reducescatter_async([torch.tensor([1.0]), torch.tensor([2.0, 3.0])]))
        [tensor([1.]), tensor([2., 3.])]
    """
    return handles.add(
        verbs.grouped_reduce_scatter(tensors, resolve_op(op), name, prescale_factor, postscale_factor, process_set)
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
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "synchronize",
]
