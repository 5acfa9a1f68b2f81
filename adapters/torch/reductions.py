"""Allreduce and reducescatter: blocking and differentiable, asynchronous (`_async`), in place (an underscore)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from perseus_like.collectives import Average, Op, resolve_op
from perseus_like.collectives.compression import Compressed, NoneCompressor, is_called, wire_of
from perseus_like.collectives.handle import CollectiveHandle, Handle, handles
from perseus_like.docstrings import documented
from perseus_like.process_sets import ProcessSet, global_process_set
from perseus_like.tables import Start

from .autograd import (
    HorovodAllreduce,
    HorovodGroupedAllreduce,
    HorovodGroupedReducescatter,
    HorovodReducescatter,
    differentiable,
)
from .tensors import collectives

Tensor = torch.Tensor


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
        if differentiable(tensor):
            result: Tensor = HorovodAllreduce.apply(  # type: ignore[no-untyped-call]
                tensor, average, name, op, prescale_factor, postscale_factor, process_set, wire
            )
            return result
        chosen = resolve_op(op, average)
        factors = (prescale_factor, postscale_factor, process_set, wire)
        return collectives.allreduce(tensor, chosen, name, *factors, start=Start.call).result()
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
    return handles.add(collectives.allreduce(tensor, chosen, name, prescale_factor, postscale_factor, process_set))


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
    return collectives.reduce_in_place(
        tensor, chosen, name, prescale_factor, postscale_factor, process_set, start=Start.call
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
    return handles.add(
        collectives.reduce_in_place(tensor, chosen, name, prescale_factor, postscale_factor, process_set)
    )


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
    if not differentiable(*tensors) and not is_called(compression):
        factors = (prescale_factor, postscale_factor, process_set, wire_of(compression))
        return collectives.grouped_allreduce(tensors, resolve_op(op, average), name, *factors).result()
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
    return handles.add(
        collectives.grouped_allreduce(tensors, chosen, name, prescale_factor, postscale_factor, process_set)
    )


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
    pending = collectives.grouped_allreduce(tensors, chosen, name, prescale, postscale, process_set, in_place=True)
    return pending.then(tuple)


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
    if differentiable(*small.tensors):
        result = HorovodReducescatter.apply(  # type: ignore[no-untyped-call]
            small.tensors[0], name, op, process_set, prescale_factor, postscale_factor
        )
    else:
        rest = (resolve_op(op), name, prescale_factor, postscale_factor, process_set)
        result = collectives.reduce_scatter(small.tensors[0], *rest).result()
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
        collectives.reduce_scatter(tensor, resolve_op(op), name, prescale_factor, postscale_factor, process_set)
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
    if differentiable(*small.tensors):
        shares = HorovodGroupedReducescatter.apply(  # type: ignore[no-untyped-call]
            name, op, process_set, prescale_factor, postscale_factor, *small.tensors
        )
    else:
        rest = (resolve_op(op), name, prescale_factor, postscale_factor, process_set)
        shares = collectives.grouped_reduce_scatter(small.tensors, *rest).result()
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
        collectives.grouped_reduce_scatter(
            tensors, resolve_op(op), name, prescale_factor, postscale_factor, process_set
        )
    )


__all__ = [
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "reducescatter",
    "reducescatter_async",
]
