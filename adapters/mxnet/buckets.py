"""Buckets of the gradients of gluon parameters.

A bucket is one function of MXNet's engine that writes all its gradients. The engine starts it when the last of them has
been computed, so no hook has to watch the backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perseus_like.collectives import Average, Op
from perseus_like.compression import NoneCompressor, is_identity, wire_of
from perseus_like.gradients import Agreeing, Member, claim_name, divide_into_groups, lay_out
from perseus_like.process_sets import ProcessSet
from perseus_like.session import session

from .engine import OneByOne
from .gradient_memory import GradientMemory, gradient_of, when_initialized
from .ops import reduce

Array = Any
Parameter = Any  # mxnet.gluon.Parameter


@dataclass(frozen=True)
class Reduction:
    """The operation, factors and compression with which gradients are reduced."""

    process_set: ProcessSet
    op: Op = Average
    compression: Any = NoneCompressor
    prescale: float = 1.0
    postscale: float = 1.0

    @property
    def is_local(self) -> bool:
        """True if no other rank takes part: the process set has one rank, or this rank is not in it."""
        return self.process_set.size() == 1 or not self.process_set.included()

    def start(self, name: str, arrays: Sequence[Array], priority: int = 0, also_written: Sequence[Array] = ()) -> None:
        """Reduces arrays in place, as one unit, in MXNet's engine."""
        wire = wire_of(self.compression)
        if wire is None and not is_identity(self.compression):
            self._start_compressed(name, arrays, priority, also_written)
            return
        verb = "allreduce" if len(arrays) == 1 else "grouped_allreduce"
        factors = (self.prescale, self.postscale)
        reduce(verb, arrays, arrays, self.op, name, *factors, self.process_set, priority, wire, also_written)

    def _start_compressed(
        self, name: str, arrays: Sequence[Array], priority: int, also_written: Sequence[Array]
    ) -> None:
        """Reduces with a compression that the core does not know."""
        pairs = [self.compression.compress(array) for array in arrays]
        small = [each for each, _ in pairs]  # may be the gradients
        verb = "allreduce" if len(arrays) == 1 else "grouped_allreduce"
        rest = (self.prescale, self.postscale, self.process_set, priority, None, also_written)
        reduce(verb, small, small, self.op, name, *rest)
        for array, each, (_, context) in zip(arrays, small, pairs, strict=True):
            array[:] = self.compression.decompress(each, context)


class GradientBuckets:
    """The buckets of one trainer. All ranks make their trainers in the same order.

    Requests do not depend on the memory of the gradients, which may be shared on one rank and private on another.
    """

    def __init__(self, reduction: Reduction, prefix: str, groups: int, parameters: Sequence[Parameter]) -> None:
        self._reduction = reduction
        self._prefix = prefix
        self._groups = groups
        self._generation = session.generation
        self._name = self._claim()
        self._parameters: list[Parameter] = []
        self._buckets: list[list[int]] = []  # indices in `_parameters`
        self._agreed = False
        self._memory = GradientMemory()
        self._one_by_one = OneByOne()
        trained = [parameter for parameter in parameters if parameter.grad_req != "null"]
        when_initialized(trained, lambda: self._lay_out(trained))

    def reduce(self, parameters: Sequence[Parameter]) -> None:
        """Reduces the gradients of `parameters` in place, in MXNet's engine. All ranks pass the same parameters."""
        if self._generation != session.generation:
            self._generation, self._name, self._agreed = session.generation, self._claim(), False
        if self._parameters != list(parameters):
            self._lay_out(list(parameters))
        if not self._agreed:
            self._agree()
        self._memory.check()
        for number, bucket in enumerate(self._buckets):
            gradients = [gradient_of(self._parameters[index]) for index in bucket]
            self._reduction.start(f"{self._name}.{number}", gradients, -number, self._one_by_one.array_of(number))

    def _claim(self) -> str:
        claimed = claim_name(self._reduction.process_set)
        return f"{claimed}.{self._prefix}" if self._prefix else claimed

    def _lay_out(self, parameters: list[Parameter]) -> None:
        # A backward pass computes the gradients of the last layers first.
        order = list(reversed(range(len(parameters))))
        members = {index: _member_of(gradient_of(parameters[index])) for index in order}
        groups = divide_into_groups(len(parameters), self._groups) if self._groups else None
        layout = lay_out(members, order, groups)
        self._parameters, self._buckets, self._agreed = parameters, [each.members for each in layout.buckets], False
        if wire_of(self._reduction.compression) is not None or is_identity(self._reduction.compression):
            for bucket in layout.buckets:
                self._memory.move([parameters[index] for index in bucket.members], bucket)

    def _agree(self) -> None:
        """Raises DisagreementError, with their names, if ranks have different parameters."""
        gradients = [gradient_of(parameter) for parameter in self._parameters]
        descriptions = [
            f"{parameter.name!r} {np.dtype(gradient.dtype)}{list(gradient.shape)}"
            for parameter, gradient in zip(self._parameters, gradients, strict=True)
        ]
        Agreeing(self._name, descriptions, [], {}, self._reduction.process_set).settle()
        self._agreed = True


def _member_of(gradient: Array) -> Member[str]:
    dtype = np.dtype(gradient.dtype)
    return Member(gradient.size, dtype.itemsize, dtype.name)
