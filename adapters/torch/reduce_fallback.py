"""Gradients that do not travel as a bucket does: those that are compressed one by one, and those that came late."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from perseus_like.collectives import Average
from perseus_like.compression import wire_of
from perseus_like.handle import Pending

from .autograd import verbs
from .feedback import FeedbackCompressor
from .reduction import Reduction


def send_compressed(
    name: str, gradients: Mapping[int, torch.Tensor], reduction: Reduction, feedback: FeedbackCompressor | None
) -> Callable[[], object]:
    """What the core does not do while packing works on one gradient at a time. Gives what waits for them.

    `gradients`: by the parameter's number.
    """
    if feedback is not None:
        return feedback.start(name, dict(gradients), reduction.op is Average, reduction.process_set)
    views = list(gradients.values())
    with torch.no_grad():
        pairs = [reduction.compression.compress(view) for view in views]
    factors = (reduction.prescale, reduction.postscale, reduction.process_set)
    pending: Pending[list[torch.Tensor]] = verbs.grouped_allreduce(
        [small for small, _ in pairs], reduction.op, name, *factors
    )

    def receive() -> None:
        for view, small, (_, context) in zip(views, pending.result(), pairs, strict=True):
            view.copy_(reduction.compression.decompress(small, context))

    return receive


def send_late(name: str, parameter: torch.Tensor, reduction: Reduction) -> Callable[[], object]:
    """The gradient of a parameter that had no hook yet: by itself this time, in a bucket from the next step on."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    elif parameter.grad.layout is not torch.strided:
        parameter.grad = parameter.grad.to_dense()
    factors = (reduction.prescale, reduction.postscale, reduction.process_set, wire_of(reduction.compression))
    return verbs.allreduce(parameter.grad, reduction.op, name, *factors, in_place=True).result
