"""Keras on torch: everything is eager, and all gradients have been computed when the optimizer is called."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import keras

from perseus_like.basics import restart
from perseus_like.collectives import Average, Collectives, Sum, gradient_rules
from perseus_like.common_api import adapter
from perseus_like.compression import is_identity, wire_of
from perseus_like.elastic import ModelState, run_fn
from perseus_like.errors import UnavailableError
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
    """Returns a context in which variables can be made, which is any context."""
    return contextlib.nullcontext()


def broadcast_global_variables(root_rank: int) -> Any:
    raise UnavailableError(
        "broadcast_global_variables() is for graphs of TensorFlow 1; on Keras' torch backend, pass "
        "BroadcastGlobalVariablesCallback to fit()"
    )


class GradientReduction:
    """The reduction of one optimizer. Call it with gradients and their variables, in the same order.

    The variables alone determine which gradients are reduced together. So ranks with different gradients make the same
    requests and get an error.
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
        self._local: dict[int, Any] = {}  # by id; the variable is kept, so that its id is not reused

    def register_local(self, variable: Any) -> None:
        self._local[id(variable)] = variable

    @property
    def communicates(self) -> bool:
        """False if no other rank takes part: the process set has one rank, or this rank is not in it."""
        return self.process_set.included() is not False and self.process_set.size() != 1

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Returns the gradients, reduced in place. A gradient that is None on all ranks stays None."""
        if not self.communicates:
            return list(gradients)
        results = [self._dense(gradient) for gradient in gradients]
        shared = [index for index, variable in enumerate(variables) if id(variable) not in self._local]
        started = [
            self._start(number, [shared[index] for index in group], results, variables)
            for number, group in enumerate(self._groups_of([variables[index] for index in shared]))
        ]
        reduced = results_of([pending for _, pending in started])
        for (indices, _), group in zip(started, reduced, strict=True):
            for index, gradient in zip(indices, group, strict=True):
                results[index] = gradient if results[index] is not None else None
        if self._scale_local_gradients:
            for index in set(range(len(results))) - set(shared):
                results[index] = None if results[index] is None else results[index] / self.process_set.size()
        return results

    def _dense(self, gradient: Any) -> Any:
        if gradient is None or not gradient.is_sparse:
            return gradient
        if not self._sparse_as_dense:
            raise ValueError(
                "sparse gradients on Keras' torch backend: pass sparse_as_dense=True to DistributedOptimizer"
            )
        return gradient.to_dense()

    def _groups_of(self, variables: Sequence[Any]) -> list[list[int]]:
        """Returns the groups: all variables in one, or those of the user, and one for each variable in none of them."""
        if self._groups is None:
            return [list(range(len(variables)))] if variables else []
        if isinstance(self._groups, int):
            return divide_into_groups(len(variables), self._groups)
        group_of = {id(variable): number for number, group in enumerate(self._groups) for variable in group}
        alone = itertools.count(len(self._groups))
        indices: dict[int, list[int]] = {}
        for index, variable in enumerate(variables):
            number = group_of.get(id(variable))
            indices.setdefault(next(alone) if number is None else number, []).append(index)
        return [indices[number] for number in sorted(indices)]

    def _start(
        self, number: int, indices: list[int], gradients: list[Any], variables: Sequence[Any]
    ) -> tuple[list[int], Pending[list[Any]]]:
        """Starts the reduction of a group. An empty tensor stands for a missing gradient."""
        members = [
            variables[index].value.detach().new_empty(0) if gradients[index] is None else gradients[index]
            for index in indices
        ]
        compression, wire = self._compression, wire_of(self._compression)
        words = [
            f"gradient {index}, of {variables[index].path}" + ("\tno gradient" if gradients[index] is None else "")
            for index in indices
        ]
        more: dict[str, Any] = {"in_place": True, "member_names": "\n".join(words)}
        is_wide = all(_tensors.view(member)[1] in WIDE_FLOATING for member in members)
        arguments = (self.op, f"{self.name}.gradients_{number}", *self._factors, self.process_set)
        if is_identity(compression) or (wire is not None and is_wide):
            return indices, _verbs.grouped_allreduce(members, *arguments, wire, **more)
        pairs = [compression.compress(member) for member in members]
        contexts = [context for _, context in pairs]
        pending = _verbs.grouped_allreduce([small for small, _ in pairs], *arguments, **more)
        return indices, pending.then(
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
