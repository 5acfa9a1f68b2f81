"""Keras on torch: everything is eager, and all gradients are there when the optimizer is called."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import keras

from perseus_like.basics import restart
from perseus_like.collectives import Average, Collectives, Sum, gradient_rules
from perseus_like.compression import is_identity, wire_of
from perseus_like.elastic import ModelState, run_fn
from perseus_like.errors import UnavailableError
from perseus_like.frameworks import adapter
from perseus_like.gradients import divide_into_groups
from perseus_like.handle import Pending, results_of
from perseus_like.process_sets import ProcessSet, global_process_set
from perseus_like.tensor import WIDE_FLOATING
from perseus_like.variables import read as read
from perseus_like.variables import write as write

framework = adapter("torch")
math = keras.ops
_tensors = framework.tensors.tensors
_verbs: Collectives[Any] = Collectives(_tensors)


def tensor(value: Any) -> Any:
    return keras.ops.convert_to_tensor(value)


def outside_of_functions() -> contextlib.AbstractContextManager[None]:
    """Where variables can be made: anywhere."""
    return contextlib.nullcontext()


def broadcast_global_variables(root_rank: int) -> Any:
    raise UnavailableError(
        "broadcast_global_variables() is for graphs of TensorFlow 1; on Keras' torch backend, pass "
        "BroadcastGlobalVariablesCallback to fit()"
    )


class GradientReduction:
    """How one optimizer reduces. Call it with gradients and the variables they belong to, both in one order.

    Which gradients travel together follows from the variables alone, so that ranks whose gradients differ meet in the
    same requests and are told.
    """

    def __init__(
        self,
        name: str,
        op: int = Average,
        compression: Any = framework.Compression.none,
        sparse_as_dense: bool = False,
        gradient_predivide_factor: float = 1.0,
        groups: Any = None,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        self.op, self._factors = gradient_rules(op, gradient_predivide_factor, (Average, Sum))
        self.name = name
        self.process_set = process_set
        self._compression = compression
        self._sparse_as_dense = sparse_as_dense
        self._groups = groups
        self._scale_local_gradients = scale_local_gradients
        self._local: dict[int, Any] = {}  # by id, with the variable, so that the id stays its own

    def register_local(self, variable: Any) -> None:
        self._local[id(variable)] = variable

    @property
    def communicates(self) -> bool:
        """False where there is nobody to reduce with: one rank, or one outside of the process set."""
        return self.process_set.included() is not False and self.process_set.size() != 1

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The reduced gradients; None stays None, if it is None on all ranks. Written where they were."""
        if not self.communicates:
            return list(gradients)
        results = [self._dense(gradient) for gradient in gradients]
        shared = [place for place, variable in enumerate(variables) if id(variable) not in self._local]
        started = [
            self._start(number, [shared[place] for place in group], results, variables)
            for number, group in enumerate(self._groups_of([variables[place] for place in shared]))
        ]
        reduced = results_of([pending for _, pending in started])
        for (places, _), group in zip(started, reduced, strict=True):
            for place, gradient in zip(places, group, strict=True):
                results[place] = gradient if results[place] is not None else None
        if self._scale_local_gradients:
            for place in set(range(len(results))) - set(shared):
                results[place] = None if results[place] is None else results[place] / self.process_set.size()
        return results

    def _dense(self, gradient: Any) -> Any:
        if gradient is None or not gradient.is_sparse:
            return gradient
        if not self._sparse_as_dense:
            raise ValueError("sparse gradients on Keras' torch backend need DistributedOptimizer(sparse_as_dense=True)")
        return gradient.to_dense()

    def _groups_of(self, variables: Sequence[Any]) -> list[list[int]]:
        """All at once, unless the user says otherwise; then who is in no group of theirs has one alone."""
        if self._groups is None:
            return [list(range(len(variables)))] if variables else []
        if isinstance(self._groups, int):
            return divide_into_groups(len(variables), self._groups)
        group_of = {id(variable): number for number, group in enumerate(self._groups) for variable in group}
        alone = itertools.count(len(self._groups))
        places: dict[int, list[int]] = {}
        for place, variable in enumerate(variables):
            number = group_of.get(id(variable))
            places.setdefault(next(alone) if number is None else number, []).append(place)
        return [places[number] for number in sorted(places)]

    def _start(
        self, number: int, places: list[int], gradients: list[Any], variables: Sequence[Any]
    ) -> tuple[list[int], Pending[list[Any]]]:
        """A gradient that is not there travels as a tensor of no elements."""
        members = [
            variables[place].value.detach().new_empty(0) if gradients[place] is None else gradients[place]
            for place in places
        ]
        compression, wire = self._compression, wire_of(self._compression)
        words = [
            f"gradient {place}, of {variables[place].path}" + ("\tno gradient" if gradients[place] is None else "")
            for place in places
        ]
        more: dict[str, Any] = {"in_place": True, "member_names": "\n".join(words)}
        is_wide = all(_tensors.view(member)[1] in WIDE_FLOATING for member in members)
        arguments = (self.op, f"{self.name}.gradients_{number}", *self._factors, self.process_set)
        if is_identity(compression) or (wire is not None and is_wide):
            return places, _verbs.grouped_allreduce(members, *arguments, wire, **more)
        pairs = [compression.compress(member) for member in members]
        contexts = [context for _, context in pairs]
        pending = _verbs.grouped_allreduce([small for small, _ in pairs], *arguments, **more)
        return places, pending.then(
            lambda found: [compression.decompress(*pair) for pair in zip(found, contexts, strict=True)]
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
        """`last` gets the sums; after any other pass `other` is called."""
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
    """The name is Horovod's; here the model's tensors are torch's."""

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer, **kwargs)


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates `train(state, …)`: it is called again, with the state of the last commit, when a collective fails."""
    return run_fn(func, restart)
