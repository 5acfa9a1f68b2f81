"""Keras on torch: everything is eager, and all gradients have been computed when the optimizer is called."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import keras

from perseus_like.adapter_exports import adapter
from perseus_like.elastic import ModelState, run_fn
from perseus_like.elastic.partial_sums import Kept, PartialSums, Sums, places_in
from perseus_like.elastic.variables import read as read
from perseus_like.elastic.variables import write as write
from perseus_like.errors import UnavailableError
from perseus_like.world import restart

framework = adapter("torch")
Reducer = adapter("torch.gradients.gradient_reduction").TorchReducer
math = keras.ops
mean = keras.ops.mean


def tensor(value: Any) -> Any:
    return keras.ops.convert_to_tensor(value)


def outside_of_functions() -> contextlib.AbstractContextManager[None]:
    """Returns a context in which variables can be made, which is any context."""
    return contextlib.nullcontext()


def outside_of_scopes() -> contextlib.AbstractContextManager[None]:
    """Returns a context for requests of layers. Requests have no scopes on this backend."""
    return contextlib.nullcontext()


def broadcast_global_variables(root_rank: int) -> Any:
    raise UnavailableError(
        "broadcast_global_variables() is for graphs of TensorFlow 1; on Keras' torch backend, pass "
        "BroadcastGlobalVariablesCallback to fit()"
    )


class _ListSums:
    """The sums of the gradients of one list of variables, and the number of passes in them."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self.variables = list(variables)  # kept, so that their ids are not reused
        self.counter = 0
        self.totals: list[Any] = [None] * len(variables)


class GradientSums(PartialSums):
    """Sums the gradients of `count` backward passes. Each list of variables counts its own passes."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._lists: dict[tuple[int, ...], _ListSums] = {}  # the one that was used last is at the end

    @property
    def counter(self) -> int:
        """The number of passes that are summed so far, of the list of variables that was used last."""
        return next(reversed(self._lists.values())).counter if self._lists else 0

    def step(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        last: Callable[[list[Any]], object],
        other: Callable[[], object],
    ) -> None:
        """Adds gradients. Calls `last` with the sums after the last pass, and `other` after all other passes."""
        sums = self._sums_of(variables)
        for place, gradient in enumerate(gradients):
            if gradient is not None:
                total = sums.totals[place]
                sums.totals[place] = gradient.clone() if total is None else total + gradient
        sums.counter += 1
        if sums.counter < self._count:
            other()
            return
        totals = sums.totals
        sums.totals, sums.counter = [None] * len(totals), 0
        last(totals)

    def read(self, variables: Sequence[Any]) -> Kept:
        kept = {}
        for sums in self._lists.values():
            places = places_in(variables, sums.variables)
            if sums.counter and places is not None:
                values = [None if each is None else keras.ops.convert_to_numpy(each).copy() for each in sums.totals]
                kept[places] = Sums(sums.counter, values)
        return kept

    def write(self, variables: Sequence[Any], kept: Kept) -> None:
        for sums in self._lists.values():
            sums.totals, sums.counter = [None] * len(sums.totals), 0
        for places, given in kept.items():
            sums = self._sums_of([variables[place] for place in places])
            sums.counter = given.passes
            for place, value in enumerate(given.values):
                if value is not None:
                    like = getattr(sums.variables[place], "value", sums.variables[place])
                    sums.totals[place] = tensor(value.copy()).to(like)

    def _sums_of(self, variables: Sequence[Any]) -> _ListSums:
        key = tuple(map(id, variables))
        found = self._lists.pop(key, None) or _ListSums(variables)
        self._lists[key] = found
        return found


class TensorFlowKerasState(ModelState):
    """Elastic state of a model, by Horovod's name. The model's tensors are torch's."""

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer, **kwargs)


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates `train(state, …)`. If a collective fails, it runs again with the state of the last commit."""
    return run_fn(func, restart)
