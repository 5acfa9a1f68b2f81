"""Sums of gradients over several backward passes, in variables, which traced functions and graphs update, too."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from perseus_like.elastic import variables as plain
from perseus_like.elastic.partial_sums import Kept, PartialSums, Sums, places_in

from ..variables import key_of

Read = Callable[[Sequence[Any]], list[Any]]
Write = Callable[[Sequence[Any], list[Any]], None]


class GradientSums:
    """The sums of the gradients of one list of variables, and the number of passes in them."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self.variables = list(variables)  # kept, so that their keys are not reused
        self.keys = frozenset(map(key_of, variables))
        self.totals: list[Any] = [None] * len(variables)
        with tf.init_scope():
            self.graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()  # of the sums
            self.counter = _local_variable(lambda: tf.zeros([], tf.int32), "backward_passes")

    def make_total(self, place: int, dtype: Any) -> Any:
        """Returns the sum for the variable at this place, which is made at its first gradient."""
        if self.totals[place] is None:
            zeros = partial(tf.zeros, tf.TensorShape(self.variables[place].shape), dtype)
            with tf.init_scope():
                self.totals[place] = _local_variable(zeros, "gradient_sum")
        return self.totals[place]

    def made(self) -> list[Any]:
        return [total for total in self.totals if total is not None]

    def clear(self) -> list[Any]:
        """Sets the sums and the number of passes to zero. Returns the operations that do so in a graph."""
        return [*(total.assign(tf.zeros_like(total)) for total in self.made()), self.counter.assign(0)]


class SumsOfLists(PartialSums):
    """The sums of one optimizer. Each list of variables has its own, and counts its own passes."""

    def __init__(self) -> None:
        self._lists: dict[tuple[Any, ...], GradientSums] = {}  # the one that was used last is at the end
        _living.append(weakref.ref(self))

    @property
    def counter(self) -> Any:
        """The number of passes that are summed so far, in a variable, of the list of variables that was used last."""
        return next(reversed(self._lists.values())).counter if self._lists else 0

    def sums_of(self, variables: Sequence[Any]) -> GradientSums:
        """Returns the sums of this list of variables, which are zero at first."""
        key = tuple(map(key_of, variables))
        found = self._lists.pop(key, None) or GradientSums(variables)
        self._lists[key] = found
        return found

    def sums_with(self, variables: Sequence[Any]) -> GradientSums | None:
        """Returns the sums that were used last of those that contain these variables."""
        keys = set(map(key_of, variables))
        newest_first = list(reversed(self._lists.values()))
        return next((sums for sums in newest_first if keys <= sums.keys), next(iter(newest_first), None))

    def read(self, variables: Sequence[Any]) -> Kept:
        return self.read_by(plain.read, variables) if tf.executing_eagerly() else {}

    def write(self, variables: Sequence[Any], kept: Kept) -> None:
        if tf.executing_eagerly():
            self.write_by(plain.write, variables, kept)

    def read_by(self, read: Read, variables: Sequence[Any], graph: Any = None) -> Kept:
        """Does the same as `read` for a graph; `read(sums)` returns the values of variables."""
        kept = {}
        for sums in self._of_graph(graph):
            places = places_in(variables, sums.variables)
            if places is None or not (passes := int(read([sums.counter])[0])):
                continue
            values = iter(read(sums.made()))
            kept[places] = Sums(passes, [None if total is None else next(values) for total in sums.totals])
        return kept

    def write_by(self, write: Write, variables: Sequence[Any], kept: Kept, graph: Any = None) -> None:
        """Does the same as `write` for a graph; `write(sums, values)` assigns values to variables."""
        for sums in self._of_graph(graph):
            zeros = [np.zeros(total.shape, total.dtype.as_numpy_dtype) for total in sums.made()]
            write([sums.counter, *sums.made()], [np.int32(0), *zeros])
        for places, given in kept.items():
            sums = self.sums_of([variables[place] for place in places])
            for place, value in enumerate(given.values):
                if value is not None:
                    write([sums.make_total(place, tf.as_dtype(value.dtype))], [value])
            write([sums.counter], [np.int32(given.passes)])

    def _of_graph(self, graph: Any) -> list[GradientSums]:
        return [sums for sums in self._lists.values() if sums.graph is graph]


class LivingSums(PartialSums):
    """The sums of all optimizers of this process, for a state that knows the variables but not the optimizers.

    All ranks make these optimizers in the same order. The keys of `Kept` begin with the optimizer's number.
    """

    def __init__(self, read: Read, write: Write, graph: Any) -> None:
        """Takes the graph of the session in which `read` and `write` run; None if they are eager."""
        self._read, self._write, self._graph = read, write, graph

    def read(self, variables: Sequence[Any]) -> Kept:
        kept = {}
        with contextlib.suppress(tf.errors.FailedPreconditionError):  # a session has not initialized them yet
            for number, sums in enumerate(_all_living()):
                of_optimizer = sums.read_by(self._read, variables, self._graph)
                kept.update({(number, *places): each for places, each in of_optimizer.items()})
        return kept

    def write(self, variables: Sequence[Any], kept: Kept) -> None:
        with contextlib.suppress(tf.errors.FailedPreconditionError):
            for number, sums in enumerate(_all_living()):
                of_optimizer = {places[1:]: each for places, each in kept.items() if places[0] == number}
                sums.write_by(self._write, variables, of_optimizer, self._graph)


_living: list[weakref.ref[SumsOfLists]] = []


def _all_living() -> list[SumsOfLists]:
    found = [sums for reference in _living if (sums := reference()) is not None]
    _living[:] = [reference for reference in _living if reference() is not None]
    return found


def _local_variable(initial: Callable[[], Any], name: str) -> Any:
    if tf.executing_eagerly():
        return tf.Variable(initial(), trainable=False, name=name)
    collections = [tf.compat.v1.GraphKeys.LOCAL_VARIABLES]
    return tf.compat.v1.Variable(initial, trainable=False, use_resource=True, collections=collections, name=name)
