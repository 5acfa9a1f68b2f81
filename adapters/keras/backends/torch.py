"""Keras on torch: everything is eager, and all gradients have been computed when the optimizer is called."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import keras

from perseus_like.basics import restart
from perseus_like.common_api import adapter
from perseus_like.elastic import ModelState, run_fn
from perseus_like.errors import UnavailableError
from perseus_like.variables import read as read
from perseus_like.variables import write as write

framework = adapter("torch")
Reducer = adapter("torch.gradient_reduction").TorchReducer
math = keras.ops


def tensor(value: Any) -> Any:
    return keras.ops.convert_to_tensor(value)


def outside_of_functions() -> contextlib.AbstractContextManager[None]:
    """Returns a context in which variables can be made, which is any context."""
    return contextlib.nullcontext()


def broadcast_global_variables(root_rank: int) -> Any:
    raise UnavailableError(
        "broadcast_global_variables() is for graphs of TensorFlow 1; on Keras' torch backend, pass "
        "BroadcastGlobalVariablesCallback to fit()"
    )


class Passes:
    """Sums the gradients of `count` backward passes."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.counter = 0
        self._sums: dict[int, Any] = {}

    def step(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        last: Callable[[list[Any]], object],
        other: Callable[[], object],
    ) -> None:
        """Adds gradients. Calls `last` with the sums after the last pass, and `other` after all other passes."""
        for gradient, variable in zip(gradients, variables, strict=True):
            key = id(variable)
            if gradient is not None:
                self._sums[key] = gradient.clone() if key not in self._sums else self._sums[key] + gradient
        self.counter += 1
        if self.counter < self._count:
            other()
            return
        sums = [self._sums.get(id(variable)) for variable in variables]
        self._sums, self.counter = {}, 0
        last(sums)


class TensorFlowKerasState(ModelState):
    """Elastic state of a model, by Horovod's name. The model's tensors are torch's."""

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer, **kwargs)


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates `train(state, …)`. If a collective fails, it runs again with the state of the last commit."""
    return run_fn(func, restart)
