"""Reduces gradients apart from the buckets: gradients that are compressed one by one, and gradients without a hook."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from perseus_like.collectives import Average
from perseus_like.collectives.compression import Compressed, wire_of
from perseus_like.gradients import GradientRules

from ..feedback import FeedbackCompressor
from ..tensors import collectives


def send_compressed(
    name: str, gradients: Mapping[int, torch.Tensor], rules: GradientRules, feedback: FeedbackCompressor | None
) -> Callable[[], object]:
    """Starts a reduction whose compression runs in Python, on each gradient. Returns a function that waits for the end.

    `gradients`: the gradients by the parameter's number.
    """
    if feedback is not None:
        return feedback.start(name, dict(gradients), rules.op is Average, rules.process_set)
    views = list(gradients.values())
    with torch.no_grad():
        small = Compressed(rules.compression, views)
    pending = collectives.grouped_allreduce(small.tensors, rules.op, name, *rules.factors, rules.process_set)

    def receive() -> None:
        for view, reduced in zip(views, small.restore(pending.result()), strict=True):
            view.copy_(reduced)

    return receive


def send_late(name: str, parameter: torch.Tensor, rules: GradientRules) -> Callable[[], object]:
    """Starts the reduction of one gradient whose parameter had no hook. From the next step on, a bucket contains it."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    elif parameter.grad.layout is not torch.strided:
        parameter.grad = parameter.grad.to_dense()
    rest = (*rules.factors, rules.process_set, wire_of(rules.compression))
    return collectives.allreduce(parameter.grad, rules.op, name, *rest, in_place=True).result
