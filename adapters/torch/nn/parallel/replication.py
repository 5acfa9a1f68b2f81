"""Copies a model's parameters and buffers from one rank to the others."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from perseus_like.collectives import Max, Sum
from perseus_like.collectives.handle import results_of
from perseus_like.gradients.agreement import Agreeing
from perseus_like.process_sets import ProcessSet

from ...gradients.ownership import describe
from ...tensors import collectives
from .reducer import Named, Reducer


class Replication:
    """Knows the ranks but no tensors, because a model's tensors may be replaced."""

    def __init__(self, reducer: Reducer, process_set: ProcessSet) -> None:
        self._reducer = reducer
        self._process_set = process_set

    def verify(self, named: Sequence[Named]) -> None:
        """Raises the same DisagreementError on all ranks if names, dtypes or shapes differ."""
        descriptions = [describe(*each) for each in named]
        Agreeing(self._reducer.name, descriptions, [], {}, self._process_set, owner="DistributedDataParallel").agree()

    def copy_from_first(self, tensors: Sequence[torch.Tensor]) -> None:
        ranks = self._process_set.ranks
        assert ranks
        self.copy_from(ranks[0], tensors)

    def copy_from(self, root_rank: int, tensors: Sequence[torch.Tensor]) -> None:
        """Copies the tensors of `root_rank`, which is a rank in the job, to all ranks."""
        results_of(
            [
                collectives.broadcast(
                    tensor, root_rank, f"{self._reducer.name}.state.{place}", self._process_set, in_place=True
                )
                for place, tensor in enumerate(tensors)
                if tensor.numel()
            ]
        )

    def copy_from_present(self, tensors: Sequence[torch.Tensor], present: bool = True) -> None:
        """Copies from the highest rank that has not joined, by sums, to which joined ranks contribute zeros.

        A broadcast would need all ranks.

        `present`: False for a rank that has joined by torch's `Join`, of which the core does not know.
        """
        mine = (self._process_set.rank() or 0) + 1 if present else 0
        name, group = f"{self._reducer.name}.present", self._process_set
        highest = collectives.allreduce(torch.tensor([mine]), Max, f"{name}.rank", process_set=group).result()
        is_root = present and int(highest) == mine
        numbers = [tensor.to(torch.uint8) if tensor.dtype is torch.bool else tensor.clone() for tensor in tensors]
        if not is_root:
            for number in numbers:
                number.zero_()
        summed = results_of(
            [
                collectives.allreduce(number, Sum, f"{name}.{place}", process_set=group, in_place=True)
                for place, number in enumerate(numbers)
                if number.numel()
            ]
        )
        if is_root:
            return
        filled = [tensor for tensor in tensors if tensor.numel()]
        with torch.no_grad():
            for tensor, value in zip(filled, summed, strict=True):
                tensor.copy_(value)
