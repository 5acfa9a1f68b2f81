"""Gradients that no step has used yet, as a part of the elastic state of an optimizer."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from perseus_like.collectives import Sum
from perseus_like.collectives.handle import results_of
from perseus_like.objects import allgather_object

from ..tensors import collectives

Kept = dict[int, torch.Tensor]  # by the place of the parameter in the groups of the optimizer
_USED = "_perseus_used_version"  # an attribute of a gradient: its version when a step used it


class PartialGradients:
    """Knows which gradients of an optimizer have been computed since its last step.

    A training that returns to a commit between two backward passes of a step continues with these gradients. One that
    returns to a commit between two steps continues without any, although the program may not call `zero_grad` first.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = weakref.ref(optimizer)
        optimizer.register_step_post_hook(_mark_used)

    def copies(self) -> Kept:
        """Returns copies of the gradients that the next step has yet to use."""
        return {
            place: parameter.grad.detach().clone()
            for place, parameter in enumerate(self._parameters())
            if parameter.grad is not None and not _is_used(parameter.grad)
        }

    def put(self, kept: Kept) -> None:
        """Sets the gradients to copies of those that were kept; all others become None."""
        for place, parameter in enumerate(self._parameters()):
            gradient = kept.get(place)
            parameter.grad = None if gradient is None else gradient.clone()

    def drop_used(self) -> None:
        """Sets gradients to None that a step has used, so that nothing is added to them."""
        for parameter in self._parameters():
            if parameter.grad is not None and _is_used(parameter.grad):
                parameter.grad = None

    def mean_over_ranks(self, kept: Kept, is_new: bool) -> Kept | None:
        """Returns the means of the gradients of all ranks that are not new; None if all are. Collective.

        A rank that has not computed a gradient counts as zeros, as it does in a step.
        """
        everybody = allgather_object((is_new, sorted(kept)), "elastic.partial_gradients")
        if all(each_is_new for each_is_new, _ in everybody):
            return None
        ranks = sum(not each_is_new for each_is_new, _ in everybody)
        places = sorted({place for each_is_new, theirs in everybody if not each_is_new for place in theirs})
        parameters = self._parameters()
        means = {}
        for place in places:
            mine = None if is_new else kept.get(place)
            dense = torch.zeros_like(parameters[place]) if mine is None else mine.to_dense() if mine.is_sparse else mine
            means[place] = dense.detach().clone().div_(ranks)
        results_of(
            [
                collectives.allreduce(mean, Sum, f"elastic.partial_gradients.{place}", in_place=True)
                for place, mean in means.items()
            ]
        )
        return means

    def _parameters(self) -> list[torch.Tensor]:
        optimizer = self._optimizer()
        groups = [] if optimizer is None else optimizer.param_groups
        return [parameter for group in groups for parameter in group["params"]]


def _mark_used(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Runs after each step of an optimizer."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                setattr(parameter.grad, _USED, parameter.grad._version)


def _is_used(gradient: torch.Tensor) -> bool:
    return getattr(gradient, _USED, None) == gradient._version
