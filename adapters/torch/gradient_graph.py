"""Keeps the graph of gradients that are reduced, so that a loss can be made of them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch


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
