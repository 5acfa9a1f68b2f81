"""The way of an optimizer's gradients: summed over passes, reduced over ranks, handed to the optimizer itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any

Gradients = Sequence[Any]


class Distribution:
    """What a DistributedOptimizer has beside its class; a copy of the optimizer has none, and is a plain one."""

    def __init__(
        self,
        backend: ModuleType,
        reduction: Any,
        passes_per_step: int,
        average_passes: bool,
        local_layers: Iterable[Any],
    ) -> None:
        """`reduction`: the backend's GradientReduction."""
        self.suspended = False  # somebody further out reduces
        self._reduction = reduction
        self._passes_per_step = passes_per_step
        self._passes = backend.Passes(passes_per_step) if passes_per_step > 1 else None
        self._average_passes = average_passes
        self._local_layers = list(local_layers)
        self._computed: set[int] = set()

    def register_local(self, variable: Any) -> None:
        self._reduction.register_local(variable)

    @contextlib.contextmanager
    def suspend(self) -> Iterator[None]:
        """Within it, the optimizer takes gradients as they are."""
        before, self.suspended = self.suspended, True
        try:
            yield
        finally:
            self.suspended = before

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
        """`apply` gets the gradients of all ranks; `skip` is called after a backward pass that is not the last.

        What `apply` gives, where every call is a step.
        """
        if self._passes is None:
            return apply(self.reduce_once(gradients, variables))

        self._computed = set()

        def last(sums: list[Any]) -> object:
            reduced = self.reduce(sums, variables)
            if self._average_passes:
                reduced = [None if gradient is None else gradient / self._passes_per_step for gradient in reduced]
            return apply(reduced)

        return self._passes.step(gradients, variables, last, skip)

    def compute(self, pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """The pairs of `compute_gradients` with the gradients of all ranks. The next step of these variables takes
        gradients as they are. Gradients that are summed over passes come back as they are: the last pass reduces.
        """
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        reduced = gradients if self._passes is not None else self.reduce(gradients, variables)
        self._computed = {id(variable) for variable in variables}
        return list(zip(reduced, variables, strict=True))

    def sums_computed(self, variables: Sequence[Any]) -> bool:
        """Returns whether `compute` gave these variables' gradients since the last step, and they wait to be summed."""
        return self._passes is not None and self._are_computed(variables)

    def forget_computed(self) -> None:
        """The step takes gradients as they are, so what `compute` gave does not wait for it any more."""
        self._computed = set()

    def _are_computed(self, variables: Sequence[Any]) -> bool:
        return bool(self._computed) and self._computed.issuperset(map(id, variables))

    def reduce_once(self, gradients: Gradients, variables: Sequence[Any]) -> list[Any]:
        """As `reduce`; the gradients as they are if `compute` has reduced those of these variables."""
        is_reduced = self._are_computed(variables)
        self._computed = self._computed - set(map(id, variables)) if is_reduced else set()
        return list(gradients) if is_reduced else self.reduce(gradients, variables)

    def reduce(self, gradients: Gradients, variables: Sequence[Any]) -> list[Any]:
        """Those of all ranks; those of local variables are this rank's own, over the number of ranks where wanted."""
        for layer in self._local_layers:  # anew each time: a layer has its weights once it is built
            for variable in layer.trainable_weights:
                self.register_local(variable)
        reduced: list[Any] = self._reduction(gradients, variables)
        return reduced


def innermost(optimizer: Any) -> Any:
    """The optimizer that a LossScaleOptimizer wraps, or the optimizer itself."""
    inner = getattr(optimizer, "inner_optimizer", None)
    return optimizer if inner is None else innermost(inner)


_counts: dict[str, int] = {}


def claim_name(wanted: str) -> str:
    """A name for one optimizer's gradients. Those that want the same are numbered, in the order they are made in,
    which is the same on all ranks and goes on in a new session, as names stay in functions that were traced.
    """
    number = _counts.get(wanted, 0)
    _counts[wanted] = number + 1
    return wanted if number == 0 else f"{wanted}_{number}"
