"""Gradients of the collectives, which autograd calls when a loss is differentiated through a collective. Graphs of
gradients that are reduced.

Names in backward derive from those of forward, so that they do not shift the count of unnamed calls.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from perseus_like.collectives import Average, Op, Sum, resolve_op
from perseus_like.process_sets import ProcessSet
from perseus_like.session import session
from perseus_like.tables import DType

from .tensors import collectives

Gradient = torch.Tensor | None


def differentiable(*tensors: torch.Tensor) -> bool:
    """Returns whether autograd records a function of these tensors."""
    return torch.is_grad_enabled() and any(getattr(tensor, "requires_grad", False) for tensor in tensors)


def _backward_name(forward: str) -> str:
    return f"{forward}.backward"


def _require_linear(op: Op, verb: str) -> None:
    if op not in (Average, Sum):
        raise RuntimeError(f"{verb} with {op.name} has no gradient here; differentiate through Average or Sum")


class HorovodAllreduce(torch.autograd.Function):
    """An allreduce whose gradient is reduced like the tensor: Average or Sum, with the same factors."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
        wire: DType | None = None,
    ) -> torch.Tensor:
        ctx.op = resolve_op(op, average)
        ctx.rest = (prescale_factor, postscale_factor, process_set, wire)
        pending = collectives.allreduce(tensor, ctx.op, name, *ctx.rest)
        ctx.name = pending.name
        return pending.result()

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[Gradient, ...]:
        _require_linear(ctx.op, "allreduce")
        gradient = collectives.allreduce(grad_output, ctx.op, _backward_name(ctx.name), *ctx.rest).result()
        return (gradient, *[None] * 7)


class HorovodGroupedAllreduce(torch.autograd.Function):
    """Does the same as HorovodAllreduce, for a list as one unit."""

    @staticmethod
    def forward(
        ctx: Any,
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.op = resolve_op(op, average)
        ctx.rest = (prescale_factor, postscale_factor, process_set)
        pending = collectives.grouped_allreduce(tensors, ctx.op, name, *ctx.rest)
        ctx.name = pending.name
        return tuple(pending.result())

    @staticmethod
    def backward(ctx: Any, *grad_output: torch.Tensor) -> tuple[Gradient, ...]:
        _require_linear(ctx.op, "grouped_allreduce")
        gradients = collectives.grouped_allreduce(grad_output, ctx.op, _backward_name(ctx.name), *ctx.rest).result()
        return (*[None] * 6, *gradients)


class HorovodAllgather(torch.autograd.Function):
    """An allgather whose gradient is this rank's rows of the average of all ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> torch.Tensor:
        pending = collectives.allgather(tensor, name, process_set)
        ctx.name, ctx.process_set, ctx.rows = pending.name, process_set, [tensor.shape[0]]
        return pending.result()

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[Gradient, ...]:
        return _own_rows(ctx, [grad_output])[0], None, None


class HorovodGroupedAllgather(torch.autograd.Function):
    """Does the same as HorovodAllgather, for a list as one unit."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        pending = collectives.grouped_allgather(tensors, name, process_set)
        ctx.name, ctx.process_set, ctx.rows = pending.name, process_set, [tensor.shape[0] for tensor in tensors]
        return tuple(pending.result())

    @staticmethod
    def backward(ctx: Any, *grad_output: torch.Tensor) -> tuple[Gradient, ...]:
        return (None, None, *_own_rows(ctx, list(grad_output)))


def _own_rows(ctx: Any, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    """Averages the gradients, and returns the rows that this rank contributed to each."""
    name = _backward_name(ctx.name)
    counting = collectives.allgather(torch.tensor([ctx.rows]), f"{name}.rows", ctx.process_set)
    averaged = collectives.grouped_allreduce(gradients, Average, name, process_set=ctx.process_set).result()
    counts = counting.result()
    mine = ctx.process_set.rank()
    before = counts[:mine].sum(0).tolist()
    return [gradient.narrow(0, start, rows) for gradient, start, rows in zip(averaged, before, ctx.rows, strict=True)]


class HorovodBroadcast(torch.autograd.Function):
    """A broadcast whose gradient is the average of all ranks' gradients on the root, and zero on other ranks."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        pending = collectives.broadcast(tensor, root_rank, name, process_set)
        ctx.name, ctx.process_set, ctx.root_rank = pending.name, process_set, root_rank
        return pending.result()

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[Gradient, ...]:
        name = _backward_name(ctx.name)
        gradient = collectives.allreduce(grad_output, Average, name, process_set=ctx.process_set).result()
        if session.core.rank() != ctx.root_rank:
            gradient = torch.zeros_like(gradient)
        return gradient, None, None, None


class HorovodAlltoall(torch.autograd.Function):
    """An alltoall whose gradient returns each row's gradient to the sender. Rows that were not sent have none."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: list[int] | None, name: str | None, process_set: ProcessSet
    ) -> tuple[torch.Tensor, torch.Tensor]:
        pending = collectives.alltoall(tensor, splits, name, process_set)
        output, received = pending.result()
        ctx.name, ctx.process_set, ctx.received, ctx.rows = pending.name, process_set, received, tensor.shape[0]
        counts = torch.tensor(received, dtype=torch.int32)
        ctx.mark_non_differentiable(counts)
        return output, counts

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor, *dead_gradients: Any) -> tuple[Gradient, ...]:
        pending = collectives.alltoall(grad_output, ctx.received, _backward_name(ctx.name), ctx.process_set)
        gradient = pending.result()[0]
        dropped = ctx.rows - gradient.shape[0]
        if dropped:
            gradient = torch.cat([gradient, gradient.new_zeros((dropped, *gradient.shape[1:]))])
        return gradient, None, None, None


class HorovodReducescatter(torch.autograd.Function):
    """A reducescatter whose gradient is all ranks' gradients, concatenated; for Sum times the number of ranks."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
    ) -> torch.Tensor:
        ctx.op, ctx.process_set = resolve_op(op), process_set
        pending = collectives.reduce_scatter(tensor, ctx.op, name, prescale_factor, postscale_factor, process_set)
        ctx.name, ctx.factor = pending.name, prescale_factor * postscale_factor
        return pending.result()

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[Gradient, ...]:
        return (_gathered(ctx, [grad_output])[0], *[None] * 5)


class HorovodGroupedReducescatter(torch.autograd.Function):
    """Does the same as HorovodReducescatter, for a list as one unit."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.op, ctx.process_set = resolve_op(op), process_set
        pending = collectives.grouped_reduce_scatter(
            tensors, ctx.op, name, prescale_factor, postscale_factor, process_set
        )
        ctx.name, ctx.factor = pending.name, prescale_factor * postscale_factor
        return tuple(pending.result())

    @staticmethod
    def backward(ctx: Any, *grad_output: torch.Tensor) -> tuple[Gradient, ...]:
        return (*[None] * 5, *_gathered(ctx, list(grad_output)))


def _gathered(ctx: Any, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    factor = ctx.factor * (ctx.process_set.size() if ctx.op is Sum else 1)
    scaled = gradients if factor == 1 else [gradient * factor for gradient in gradients]
    return collectives.grouped_allgather(scaled, _backward_name(ctx.name), ctx.process_set).result()


class _Reduced(torch.autograd.Function):
    """Returns the value of the reduced gradient, with the graph of this rank's own gradient.

    Let rank r have the gradient g_r(w), and let P be a loss of the average g(w). The backward pass of P computes
    P'(g) dg_r/dw on rank r. The average of this over all ranks is P'(g) dg/dw, the gradient of P in one process.
    """

    @staticmethod
    def forward(
        context: Any, own: torch.Tensor, reduced: torch.Tensor, before_pass: weakref.ref[Callable[[], None]]
    ) -> torch.Tensor:
        context.before_pass = before_pass
        return reduced.clone()  # the next reduction overwrites the bucket

    @staticmethod
    def backward(context: Any, slope: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        before_pass = context.before_pass()
        if before_pass is not None:
            before_pass()
        return slope, None, None


def keep_graph(parameter: torch.Tensor, own: torch.Tensor, before_pass: Callable[[], None]) -> None:
    """Gives the reduced gradient of a parameter the graph that `backward(create_graph=True)` has made.

    `own`: this rank's gradient, before it was reduced. `before_pass`: a method to call in each backward pass through
    the graph. Its object may end before the graph.
    """
    if parameter.grad is not None:
        with torch.enable_grad():
            parameter.grad = _Reduced.apply(  # type: ignore[no-untyped-call]
                own, parameter.grad, weakref.WeakMethod(before_pass)
            )


__all__ = [
    "HorovodAllgather",
    "HorovodAllreduce",
    "HorovodAlltoall",
    "HorovodBroadcast",
    "HorovodGroupedAllgather",
    "HorovodGroupedAllreduce",
    "HorovodGroupedReducescatter",
    "HorovodReducescatter",
]
