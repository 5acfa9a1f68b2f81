"""Keras on TensorFlow: eagerly, in functions, and in the graphs with sessions of Keras 2."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

import perseus_like.tensorflow as framework
from perseus_like.elastic import variables as plain
from perseus_like.tensorflow.elastic import TensorFlowKerasState as TensorFlowKerasState
from perseus_like.tensorflow.elastic import run as run
from perseus_like.tensorflow.gradients import TensorFlowReducer
from perseus_like.tensorflow.gradients.gradient_sums import SumsOfLists

math = tf
mean = tf.reduce_mean
Reducer = TensorFlowReducer


def tensor(value: Any) -> Any:
    return tf.convert_to_tensor(value)


def outside_of_functions() -> contextlib.AbstractContextManager[None]:
    """Returns a context in which variables can be made while a function is traced."""
    scope: contextlib.AbstractContextManager[None] = tf.init_scope()
    return scope


def outside_of_scopes() -> contextlib.AbstractContextManager[object]:
    """Returns a context for requests of layers. Their names do not contain those of models, which ranks count apart."""
    scope: contextlib.AbstractContextManager[object] = tf.name_scope("")
    return scope


def read(variables: Sequence[Any]) -> list[Any]:
    return plain.read(variables) if tf.executing_eagerly() else list(keras.backend.batch_get_value(list(variables)))


def write(variables: Sequence[Any], values: Sequence[Any]) -> None:
    if tf.executing_eagerly():
        plain.write(variables, values)
    else:
        keras.backend.batch_set_value(list(zip(variables, values, strict=False)))


def broadcast_global_variables(root_rank: int) -> Any:
    operation = framework.broadcast_global_variables(root_rank)
    return tf.compat.v1.keras.backend.get_session().run(operation)


def flag_of_a_function() -> Any:
    """A variable, False at first, that the function being traced can set at each call. None outside of a function."""
    if not tf.inside_function():
        return None
    with tf.init_scope():
        # A graph of TensorFlow 1 around the function would have to initialize it.
        return tf.Variable(False, trainable=False, name="computed") if tf.executing_eagerly() else None


def executing_eagerly() -> bool:
    return bool(tf.executing_eagerly())


class GradientSums(SumsOfLists):
    """Sums the gradients of `count` backward passes in variables, which traced functions update, too."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def step(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        last: Callable[[list[Any]], object],
        other: Callable[[], object],
    ) -> None:
        """Adds gradients. Calls `last` with the sums after the last pass, and `other` after all other passes."""
        if not tf.executing_eagerly() and not tf.inside_function():
            raise ValueError("backward_passes_per_step of a Keras optimizer needs eager execution or a tf.function")
        sums = self.sums_of(variables)
        for place, gradient in enumerate(gradients):
            if isinstance(gradient, tf.IndexedSlices):
                sums.make_total(place, gradient.dtype).scatter_add(gradient)
            elif gradient is not None:
                sums.make_total(place, gradient.dtype).assign_add(gradient)
        sums.counter.assign_add(1)

        def finish() -> Any:
            last([None if total is None else total.read_value() for total in sums.totals])
            sums.clear()
            return tf.constant(True)

        def go_on() -> Any:
            other()
            return tf.constant(False)

        tf.cond(tf.equal(sums.counter, self._count), finish, go_on)
