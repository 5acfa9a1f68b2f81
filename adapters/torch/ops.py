"""The verbs on torch tensors: blocking and differentiable, asynchronous (`_async`), in place (an underscore)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from perseus_like.collectives import Average, Op, resolve_op
from perseus_like.collectives import join as _join
from perseus_like.compression import NoneCompressor, is_identity, wire_of
from perseus_like.handle import Pending, handles
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
    """Waits until every rank has joined, contributing zeros to the others' allreduces; gives the last rank to join."""
    return _join()


def _differentiable(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(getattr(tensor, "requires_grad", False) for tensor in tensors)


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
    """The reduction of every rank's tensor: Average unless `op` says otherwise. Differentiable for Average and Sum."""
    wire = wire_of(compression)
    if wire is not None or is_identity(compression):
        if _differentiable(tensor):
            result: Tensor = HorovodAllreduce.apply(  # type: ignore[no-untyped-call]
                tensor, average, name, op, prescale_factor, postscale_factor, process_set, wire
            )
            return result
        chosen = resolve_op(op, average)
        factors = (prescale_factor, postscale_factor, process_set, wire)
        return verbs.allreduce(tensor, chosen, name, *factors, wait=True).result()
    small, context = compression.compress(tensor)
    reduced: Tensor = HorovodAllreduce.apply(  # type: ignore[no-untyped-call]
        small, average, name, op, prescale_factor, postscale_factor, process_set
    )
    return compression.decompress(reduced, context)  # type: ignore[no-any-return]


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    chosen = resolve_op(op, average)
    return handles.add(verbs.allreduce(tensor, chosen, name, prescale_factor, postscale_factor, process_set))


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    chosen = resolve_op(op, average)
    return verbs.reduce_in_place(
        tensor, chosen, name, prescale_factor, postscale_factor, process_set, None, True
    ).result()


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    chosen = op if type(op) is Op and average is None else resolve_op(op, average)
    return handles.add(verbs.reduce_in_place(tensor, chosen, name, prescale_factor, postscale_factor, process_set))


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
    """Several tensors as one unit, all or nothing. Differentiable for Average and Sum."""
    wire = wire_of(compression)
    if not _differentiable(*tensors) and (wire is not None or is_identity(compression)):
        chosen = resolve_op(op, average)
        return verbs.grouped_allreduce(
            tensors, chosen, name, prescale_factor, postscale_factor, process_set, wire
        ).result()
    if not tensors:
        raise ValueError("grouped_allreduce: the list of tensors is empty")
    # torch.autograd.Function cannot pass options beside a list of tensors, so here the tensors are cast in torch.
    pairs = [compression.compress(tensor) for tensor in tensors]
    reduced = HorovodGroupedAllreduce.apply(  # type: ignore[no-untyped-call]
        average, name, op, prescale_factor, postscale_factor, process_set, *[small for small, _ in pairs]
    )
    return [compression.decompress(small, context) for small, (_, context) in zip(reduced, pairs, strict=True)]


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    chosen = resolve_op(op, average)
    return handles.add(verbs.grouped_allreduce(tensors, chosen, name, prescale_factor, postscale_factor, process_set))


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> tuple[Tensor, ...]:
    started = _start_grouped_in_place(tensors, average, name, op, prescale_factor, postscale_factor, process_set)
    return started.result()


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
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
) -> Pending[tuple[Tensor, ...]]:
    chosen = resolve_op(op, average)
    pending = verbs.grouped_allreduce(tensors, chosen, name, prescale, postscale, process_set, in_place=True)
    return pending.then(tuple)


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """The tensor of `root_rank` (its rank in the job, also with a process set) on every rank. Differentiable."""
    if _differentiable(tensor):
        result: Tensor = HorovodBroadcast.apply(tensor, root_rank, name, process_set)  # type: ignore[no-untyped-call]
        return result
    return verbs.broadcast(tensor, root_rank, name, process_set).result()


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    return handles.add(verbs.broadcast(tensor, root_rank, name, process_set))


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    return verbs.broadcast(tensor, root_rank, name, process_set, in_place=True).result()


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    return handles.add(verbs.broadcast(tensor, root_rank, name, process_set, in_place=True))


def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tensor:
    """All ranks' tensors, one after the other along dimension 0, which may differ between ranks. Differentiable."""
    if _differentiable(tensor):
        result: Tensor = HorovodAllgather.apply(tensor, name, process_set)  # type: ignore[no-untyped-call]
        return result
    return verbs.allgather(tensor, name, process_set).result()


def allgather_async(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    return handles.add(verbs.allgather(tensor, name, process_set))


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> tuple[Tensor, ...]:
    """Several tensors as one unit. Differentiable."""
    if _differentiable(*tensors):
        result: tuple[Tensor, ...] = HorovodGroupedAllgather.apply(  # type: ignore[no-untyped-call]
            name, process_set, *tensors
        )
        return result
    return tuple(verbs.grouped_allgather(tensors, name, process_set).result())


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    return handles.add(verbs.grouped_allgather(tensors, name, process_set).then(tuple))


def _plain_splits(splits: Splits) -> Sequence[int] | None:
    if not isinstance(splits, torch.Tensor):
        return splits
    if splits.dtype is not torch.int32:
        raise ValueError(f"alltoall: splits must be an int32 tensor or a list, not a {splits.dtype} tensor")
    return splits.tolist()


def alltoall(
    tensor: Tensor, splits: Splits = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor | tuple[Tensor, Tensor]:
    """`splits[r]` rows to rank r. With splits: what came, and the rows from each rank; without: what came.

    Differentiable.
    """
    plain = _plain_splits(splits)
    pair: tuple[Tensor, Tensor]
    if _differentiable(tensor):
        pair = HorovodAlltoall.apply(tensor, plain, name, process_set)  # type: ignore[no-untyped-call]
    else:
        pair = verbs.alltoall(tensor, plain, name, process_set).then(_with_counts(splits)).result()
    return pair[0] if splits is None else pair


def alltoall_async(
    tensor: Tensor, splits: Splits = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """`synchronize` gives the pair, with splits and without."""
    pending = verbs.alltoall(tensor, _plain_splits(splits), name, process_set)
    return handles.add(pending.then(_with_counts(splits)))


def _with_counts(splits: Splits) -> Callable[[tuple[Tensor, list[int]]], tuple[Tensor, Tensor]]:
    device = splits.device if isinstance(splits, torch.Tensor) else None
    return lambda pair: (pair[0], torch.tensor(pair[1], dtype=torch.int32, device=device))


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: Any = NoneCompressor,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """This rank's rows of the reduction; the first ranks get one more where rows do not divide. Differentiable."""
    small, context = compression.compress(tensor)
    result: Tensor
    if _differentiable(small):
        result = HorovodReducescatter.apply(  # type: ignore[no-untyped-call]
            small, name, op, process_set, prescale_factor, postscale_factor
        )
    else:
        chosen = resolve_op(op)
        result = verbs.reduce_scatter(small, chosen, name, prescale_factor, postscale_factor, process_set).result()
    return compression.decompress(result, context)  # type: ignore[no-any-return]


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    return handles.add(
        verbs.reduce_scatter(tensor, resolve_op(op), name, prescale_factor, postscale_factor, process_set)
    )


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: Any = NoneCompressor,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Several tensors as one unit. Differentiable."""
    if not tensors:
        raise ValueError("grouped_reducescatter: the list of tensors is empty")
    pairs = [compression.compress(tensor) for tensor in tensors]
    small = [tensor for tensor, _ in pairs]
    shares: Sequence[Tensor]
    if _differentiable(*small):
        shares = HorovodGroupedReducescatter.apply(  # type: ignore[no-untyped-call]
            name, op, process_set, prescale_factor, postscale_factor, *small
        )
    else:
        chosen = resolve_op(op)
        shares = verbs.grouped_reduce_scatter(
            small, chosen, name, prescale_factor, postscale_factor, process_set
        ).result()
    return [compression.decompress(share, context) for share, (_, context) in zip(shares, pairs, strict=True)]


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    return handles.add(
        verbs.grouped_reduce_scatter(tensors, resolve_op(op), name, prescale_factor, postscale_factor, process_set)
    )
