"""DistributedOptimizer: an optimizer of MXNet with the gradients of all ranks, for Module and for custom loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np

from perseus_like.collectives import Average
from perseus_like.gradients import GradientRules, gradient_rules
from perseus_like.gradients.agreement import OwnerName
from perseus_like.process_sets import ProcessSet, global_process_set
from perseus_like.session import session

from .buckets import start_reduction
from .engine import OneByOne

Array = Any


class DistributedOptimizer(mx.optimizer.Optimizer):  # type: ignore[misc]
    """Reduces each gradient to the mean over all ranks, in place, before the wrapped optimizer updates with it.

    Everything else (learning rate, `rescale_grad`, …) is the wrapped optimizer's: attributes are read and set there.

    Args:
        optimizer: the optimizer to wrap.
        gradient_predivide_factor: f: gradients are divided by f before the sum and by size/f after it.
        num_groups: the number of units in which gradients are reduced, if the optimizer updates several weights at
            once.
        process_set: the ranks that train together. On other ranks the optimizer does not communicate.

    Raises:
        ValueError: the optimizer is a DistributedOptimizer already, or `num_groups` is negative.

    Examples:
        >>> optimizer = hvd.DistributedOptimizer(mx.optimizer.SGD(learning_rate=0.01 * hvd.size()))
        >>> optimizer.learning_rate
        0.01
    """

    wrapped: Any
    _rules: GradientRules
    _one_by_one: OneByOne
    _generation: int
    _name: str

    def __init__(
        self,
        optimizer: mx.optimizer.Optimizer,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        # The base class's __init__ is not called: its attributes would hide those of the wrapped optimizer.
        if isinstance(optimizer, DistributedOptimizer):
            raise ValueError("DistributedOptimizer: the optimizer is one already; pass the optimizer that it wraps")
        rules = gradient_rules((Average,), Average, gradient_predivide_factor, num_groups, id, process_set)
        self.__dict__.update(
            wrapped=optimizer,
            _rules=rules,
            _one_by_one=OneByOne(),
            _generation=-1,
            _name="",
        )

    def __getattr__(self, name: str) -> Any:
        if name == "wrapped":  # while it is being copied
            raise AttributeError(name)
        return getattr(self.wrapped, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__:
            self.__dict__[name] = value
        else:
            setattr(self.wrapped, name, value)

    def __reduce__(self) -> Any:
        """Makes copies plain optimizers, because they belong to other parameters, on this rank alone."""
        return _itself, (self.wrapped,)

    def create_state(self, index: int, weight: Array) -> Any:
        return self.wrapped.create_state(index, weight)

    def create_state_multi_precision(self, index: int, weight: Array) -> Any:
        return self.wrapped.create_state_multi_precision(index, weight)

    def update(self, index: int | Sequence[int], weight: Any, grad: Any, state: Any) -> None:
        self._reduce(index, grad)
        self.wrapped.update(index, weight, grad, state)

    def update_multi_precision(self, index: int | Sequence[int], weight: Any, grad: Any, state: Any) -> None:
        self._reduce(index, grad)
        self.wrapped.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        self.wrapped.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: dict[Any, float]) -> None:
        self.wrapped.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: dict[Any, float]) -> None:
        self.wrapped.set_wd_mult(args_wd_mult)

    def _reduce(self, index: int | Sequence[int], grad: Any) -> None:
        rules = self._rules
        if not rules.communicates:
            return
        indices, gradients = (index, grad) if isinstance(index, list | tuple) else ([index], [grad])
        if self._generation != session.generation:
            self._name = OwnerName(rules.process_set).meet(list(map(self._describe, indices, gradients)))
            self._generation = session.generation
        for group in rules.groups_of(indices) or [[position] for position in range(len(indices))]:
            name = f"{self._name}.{indices[group[0]]}"
            members = [gradients[position] for position in group]
            start_reduction(rules, name, members, -group[0], self._one_by_one.array_of(name))

    def _describe(self, index: int, gradient: Array) -> str:
        name = self.wrapped.idx2name.get(index, index)
        return f"{name!r} {np.dtype(gradient.dtype)}{list(gradient.shape)}"


def _itself(optimizer: Any) -> Any:
    return optimizer
