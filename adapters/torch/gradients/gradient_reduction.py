"""Reduction of gradients that are given all at once, as to a Keras optimizer on torch."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch

from perseus_like.collectives.compression import Compressed, is_called, wire_of
from perseus_like.collectives.handle import CollectiveHandle, results_of
from perseus_like.gradients import GradientReducer, GradientRules
from perseus_like.gradients.buckets import Member
from perseus_like.session import session

from ..tensors import collectives
from .gradient_memory import Kind, allocate, fill, member_of


class TorchReducer(GradientReducer):
    """The reduction of one optimizer. Its results are valid until the next call.

    Gradients on the CPU are copied into buckets in the arena, where the ranks of a host reduce them in place. Gradients
    on a GPU are reduced where they are. Variables are tensors, or Keras variables, which contain one as `value`.
    """

    def __init__(self, name: str, rules: GradientRules, name_in_threads: str = "", is_optimizer: bool = False) -> None:
        super().__init__(name, rules, name_in_threads, is_optimizer)
        self._generation = 0
        self._views: dict[str, list[torch.Tensor]] = {}  # the members of each bucket, by the name of its request

    @staticmethod
    def key_of(variable: Any) -> int:
        return id(variable)

    def member(self, gradient: torch.Tensor | None, variable: Any) -> Member[Kind]:
        parameter = getattr(variable, "value", variable)
        kind_of = parameter if gradient is None or gradient.is_sparse else gradient
        return Member(parameter.numel(), kind_of.element_size(), (kind_of.dtype, kind_of.device))

    def zeros(self, shape: list[int], kind: Kind) -> torch.Tensor:
        return torch.zeros(shape, dtype=kind[0], device=kind[1])

    def is_sparse(self, gradient: torch.Tensor | None) -> bool:
        return gradient is not None and gradient.is_sparse

    def dense(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.to_dense() if gradient.is_sparse else gradient

    def divided(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient / (self.rules.process_set.size() or 1)

    def start_dense(
        self, name: str, members: list[torch.Tensor], member_names: str
    ) -> CollectiveHandle[list[torch.Tensor]]:
        rules = self.rules
        small = Compressed(rules.compression, members) if is_called(rules.compression) else None
        if small is None and members[0].device.type == "cpu":
            members = self._moved(name, members)
        pending = collectives.grouped_allreduce(
            *(members if small is None else small.tensors, rules.op, name, *rules.factors, rules.process_set),
            wire_of(rules.compression),
            in_place=True,
            member_names=member_names,
        )
        return pending if small is None else pending.then(small.restore)

    def _moved(self, name: str, members: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies gradients of one kind into their bucket. Returns the copies."""
        if self._generation != session.generation:  # the arena is the one of an earlier session
            self._generation = session.generation
            self._views.clear()
        views = self._views.get(name, [])
        shapes = [(member.shape, member.dtype) for member in members]
        if shapes != [(view.shape, view.dtype) for view in views]:
            self._views.pop(name, None)
            places = [member_of(member).padded_elements for member in members]
            rows = torch.split(allocate(sum(places), (members[0].dtype, members[0].device)), places)
            views = [row[: member.numel()].view(member.shape) for row, member in zip(rows, members, strict=True)]
            self._views[name] = views
        for view, member in zip(views, members, strict=True):
            fill(view, member.detach())
        return views

    def after(self, started: list[CollectiveHandle[Any]]) -> contextlib.AbstractContextManager[None]:
        errors = [error for pending in started if (error := pending.error()) is not None]
        if errors:
            raise errors[0]
        return contextlib.nullcontext()

    def finished(self, started: list[CollectiveHandle[list[torch.Tensor]]]) -> list[list[torch.Tensor]]:
        return results_of(started)

    def reduce_sparse(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        raise ValueError("sparse gradients on Keras' torch backend: pass sparse_as_dense=True to DistributedOptimizer")
