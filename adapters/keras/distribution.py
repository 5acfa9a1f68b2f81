"""The state of a DistributedOptimizer: sums of gradients over passes, and their reduction over ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any

Gradients = Sequence[Any]


class Distribution:
    """The state of a DistributedOptimizer. A copy of the optimizer has none, and is a plain optimizer."""

    def __init__(
        self,
        backend: ModuleType,
        reduction: Any,
        passes_per_step: int,
        average_passes: bool,
        local_layers: Iterable[Any],
    ) -> None:
        """Takes the backend's Reducer as `reduction`."""
        self.suspended = False  # a LossScaleOptimizer around the optimizer reduces
        self._reduction = reduction
        self._passes_per_step = passes_per_step
        self._passes = backend.GradientSums(passes_per_step) if passes_per_step > 1 else None
        self._average_passes = average_passes
        self._local_layers = list(local_layers)
        self._backend = backend
        self._computed: set[int] = set()
        # Traced functions run `compute` without its Python code; each call of one sets the flag of its variables.
        self._flags: dict[frozenset[int], Any] = {}
        self._applied_at_once = False

    def register_local(self, variable: Any) -> None:
        self._reduction.register_local(variable)

    @contextlib.contextmanager
    def suspend(self) -> Iterator[None]:
        """Lets the optimizer use gradients unchanged within the context."""
        before, self.suspended = self.suspended, True
        try:
            yield
        finally:
            self.suspended = before

    @contextlib.contextmanager
    def apply_at_once(self) -> Iterator[None]:
        """Within the context, results of `compute` are applied eagerly or in the same function, and need no flag."""
        before, self._applied_at_once = self._applied_at_once, True
        try:
            yield
        finally:
            self._applied_at_once = before

    @property
    def passes(self) -> Any:
        """The object that sums gradients over passes and counts them in `counter`. None if each pass is a step."""
        return self._passes

    def step(
        self,
        gradients: Gradients,
        variables: Sequence[Any],
        apply: Callable[[list[Any]], object],
        skip: Callable[[], object],
    ) -> Any:
        """Calls `apply` with the gradients of all ranks; before the last backward pass of a step, calls `skip` instead.

        Returns the result of `apply` if every call is a step.
        """
        if self._passes is None:
            return apply(self.reduce_once(gradients, variables))

        self.forget_computed()

        def last(sums: list[Any]) -> object:
            reduced = self.reduce(sums, variables)
            if self._average_passes:
                reduced = [None if gradient is None else gradient / self._passes_per_step for gradient in reduced]
            return apply(reduced)

        return self._passes.step(gradients, variables, last, skip)

    def compute(self, pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Returns the pairs of `compute_gradients` with the gradients of all ranks.

        The next step of these variables uses gradients unchanged. Gradients that are summed over passes are returned
        unchanged, because they are reduced after the last pass.
        """
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        reduced = gradients if self._passes is not None else self.reduce(gradients, variables)
        self._computed = {id(variable) for variable in variables}
        if not self._applied_at_once:
            self._set_flag(frozenset(self._computed))
        return list(zip(reduced, variables, strict=True))

    def _set_flag(self, computed: frozenset[int]) -> None:
        """Adds to a function that is traced: each call notes that these variables' gradients are computed."""
        if self._backend.executing_eagerly():
            return
        if computed not in self._flags:
            self._flags[computed] = self._backend.flag_of_a_function()
        if self._flags[computed] is not None:
            self._flags[computed].assign(True)

    def sums_computed(self, variables: Sequence[Any]) -> bool:
        """Returns whether `compute` has returned these variables' gradients, which the step must sum."""
        return self._passes is not None and self._are_computed(variables)

    def forget_computed(self) -> None:
        """Forgets the gradients of `compute`, because the step uses gradients unchanged."""
        self._computed = set()
        self._clear_flags()

    def _clear_flags(self) -> None:
        for flag in self._flags.values():
            if flag is not None:
                flag.assign(False)

    def _are_computed(self, variables: Sequence[Any]) -> bool:
        if self._flags and self._backend.executing_eagerly():
            for computed, flag in self._flags.items():
                if flag is not None and bool(flag):
                    self._computed |= computed
        return bool(self._computed) and self._computed.issuperset(map(id, variables))

    def reduce_once(self, gradients: Gradients, variables: Sequence[Any]) -> list[Any]:
        """Returns the reduced gradients, or the gradients unchanged if `compute` has reduced them."""
        is_reduced = self._are_computed(variables)
        self._clear_flags()
        self._computed = self._computed - set(map(id, variables)) if is_reduced else set()
        return list(gradients) if is_reduced else self.reduce(gradients, variables)

    def reduce(self, gradients: Gradients, variables: Sequence[Any]) -> list[Any]:
        """Returns the gradients of all ranks. Gradients of local variables are not reduced."""
        for layer in self._local_layers:  # each time, because a layer has no weights before it is built
            for variable in layer.trainable_weights:
                self.register_local(variable)
        reduced: list[Any] = self._reduction(gradients, variables)
        return reduced


def innermost(optimizer: Any) -> Any:
    """The optimizer that a LossScaleOptimizer wraps, or the optimizer itself."""
    inner = getattr(optimizer, "inner_optimizer", None)
    return optimizer if inner is None else innermost(inner)


_counts: dict[str, int] = {}


def reserve_name(wanted: str) -> str:
    """Returns a unique name for one optimizer's gradients: `wanted`, with a number if it was returned before.

    Only optimizers that are used in threads need it; ranks make these in the same order. A new session continues the
    numbers, because traced functions keep their names.
    """
    number = _counts.get(wanted, 0)
    _counts[wanted] = number + 1
    return wanted if number == 0 else f"{wanted}_{number}"
