"""Buckets of the gradients of gluon parameters.

A bucket is one function of MXNet's engine that writes all its gradients. The engine starts it when the last of them has
been computed, so no hook has to watch the backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from perseus_like.collectives import Collectives
from perseus_like.collectives.compression import Compressed, is_called, wire_of
from perseus_like.gradients import GradientRules
from perseus_like.gradients.agreement import OwnerName
from perseus_like.gradients.buckets import Member, lay_out
from perseus_like.session import session
from perseus_like.tensor import ArrayTensors

from .compat.parameters import has_new_gradient
from .engine import OneByOne
from .gradient_memory import GradientMemory, gradient_of, when_initialized
from .reductions import reduce

Array = Any
Parameter = Any  # mxnet.gluon.Parameter

_arrays: Collectives[np.ndarray[Any, Any]] = Collectives(ArrayTensors())


def start_reduction(
    rules: GradientRules, name: str, arrays: Sequence[Array], priority: int = 0, also_written: Sequence[Array] = ()
) -> None:
    """Reduces arrays in place, as one unit, in MXNet's engine."""
    small = Compressed(rules.compression, arrays) if is_called(rules.compression) else None
    sent = arrays if small is None else small.tensors  # may be the gradients
    verb = "allreduce" if len(arrays) == 1 else "grouped_allreduce"
    prescale, postscale = rules.factors
    wire = wire_of(rules.compression)
    reduce(verb, sent, sent, rules.op, name, prescale, postscale, rules.process_set, priority, wire, also_written)
    if small is not None:
        for array, reduced in zip(arrays, small.restore(sent), strict=True):
            array[:] = reduced


class GradientBuckets:
    """The buckets of one trainer.

    Requests do not depend on the memory of the gradients, which may be shared on one rank and private on another.
    """

    def __init__(self, rules: GradientRules, prefix: str, parameters: Sequence[Parameter]) -> None:
        self._rules = rules
        self._prefix = prefix
        self._generation = session.generation
        self._common_name = OwnerName(rules.process_set)
        self._name = ""  # of its requests, once the ranks have agreed
        self._parameters: list[Parameter] = []
        self._buckets: list[list[int]] = []  # indices in `_parameters`
        self._agreed = False
        self._memory = GradientMemory()
        self._one_by_one = OneByOne()
        trained = [parameter for parameter in parameters if parameter.grad_req != "null"]
        when_initialized(trained, lambda: self._lay_out(trained))

    def reduce(self, parameters: Sequence[Parameter]) -> dict[Parameter, list[int]]:
        """Reduces the gradients of `parameters` in place, in MXNet's engine. All ranks pass the same parameters.

        A gradient that no backward pass has written since the last step becomes zeros, if other ranks have a new one.
        Returns the parameters of such gradients, with the ranks that lack a new one; the same on all ranks.
        """
        if self._generation != session.generation:
            self._generation, self._agreed = session.generation, False
            self._common_name = OwnerName(self._rules.process_set, is_renewed=True)
        if self._parameters != list(parameters):
            self._lay_out(list(parameters))
        if not self._agreed:
            self._agree()
        self._memory.check()
        missing = self._missing_on_some_ranks()
        for parameter in missing:
            if not has_new_gradient(parameter):
                gradient_of(parameter)[:] = 0
        for number, bucket in enumerate(self._buckets):
            gradients = [gradient_of(self._parameters[index]) for index in bucket]
            also_written = self._one_by_one.array_of(number)
            start_reduction(self._rules, f"{self._name}.{number}", gradients, -number, also_written)
        return missing

    def _missing_on_some_ranks(self) -> dict[Parameter, list[int]]:
        """Returns the parameters that have a new gradient on some ranks but not on all, with the ranks that lack it.

        Collective. It does not wait for MXNet's engine, because a gradient counts as new before it has been computed.
        """
        new = [has_new_gradient(parameter) for parameter in self._parameters]
        packed = np.packbits(np.array(new, np.uint8))
        process_set = self._rules.process_set
        everybody = _arrays.allgather(packed, f"{self._name}.new", process_set).result().reshape(-1, len(packed))
        flags = np.unpackbits(everybody, axis=1, count=len(new)).astype(bool)
        ranks = np.array(process_set.ranks or [0])
        found = np.flatnonzero(flags.any(axis=0) & ~flags.all(axis=0)).tolist()
        return {self._parameters[index]: ranks[~flags[:, index]].tolist() for index in found}

    def _lay_out(self, parameters: list[Parameter]) -> None:
        # A backward pass computes the gradients of the last layers first.
        order = list(reversed(range(len(parameters))))
        gradients = {index: gradient_of(parameters[index]) for index in order}
        members = {
            index: Member(gradient.size, np.dtype(gradient.dtype).itemsize, np.dtype(gradient.dtype).name)
            for index, gradient in gradients.items()
        }
        layout = lay_out(members, order, self._rules.groups_of(range(len(parameters))))
        self._parameters, self._buckets, self._agreed = parameters, [each.members for each in layout.buckets], False
        if not is_called(self._rules.compression):
            for bucket in layout.buckets:
                self._memory.move([parameters[index] for index in bucket.members], bucket)

    def _agree(self) -> None:
        """Raises DisagreementError, with their names, if ranks have different parameters."""
        gradients = [gradient_of(parameter) for parameter in self._parameters]
        descriptions = [
            f"{parameter.name!r} {np.dtype(gradient.dtype)}{list(gradient.shape)}"
            for parameter, gradient in zip(self._parameters, gradients, strict=True)
        ]
        self._name = self._common_name.meet(descriptions) + (f".{self._prefix}" if self._prefix else "")
        self._agreed = True
