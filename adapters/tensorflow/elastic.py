"""Elastic training with TensorFlow: `hvd.elastic.TensorFlowState`, and `run` around the training function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from perseus_like.elastic import ModelState, ObjectState, State, VariablesState, run_fn
from perseus_like.elastic.partial_sums import PartialSums
from perseus_like.world import restart

from .errors import translated
from .gradients.gradient_sums import LivingSums

_Result = TypeVar("_Result")


def run(func: Callable[..., _Result]) -> Callable[..., _Result]:
    """Decorates `train(state, …)`. If a collective fails, the function runs again with the state of the last commit.

    Before each such run a new session starts, with the ranks and process sets that `init` was given. Errors of
    collectives that TensorFlow has changed to its own classes count, too.

    Args:
        func: the training function. Its first argument is the elastic state.

    Returns:
        A function with the same arguments and result.

    Examples:
        >>> @hvd.elastic.run
        ... def train(state):
        ...     for state.epoch in range(state.epoch, 3):
        ...         state.commit()
        ...     return state.epoch
        >>> from perseus_like.objects import broadcast_object
        >>> train(hvd.elastic.ObjectState(broadcast_object, hvd.rank, epoch=0))
        2
    """

    @functools.wraps(func)
    def with_our_errors(state: Any, *args: Any, **kwargs: Any) -> _Result:
        try:
            return func(state, *args, **kwargs)
        except tf.errors.OpError as error:
            ours = translated(error)
            if ours is None:
                raise
            raise ours from error

    return run_fn(with_our_errors, restart)


class TensorFlowKerasState(ModelState):
    """Elastic state of a built Keras model, its optimizer, and further objects by name (epoch, batch, …).

    All are attributes of the state.

    Args:
        model: the model, which is built.
        optimizer: its optimizer. The default is the one that the model was compiled with.
        backend: `keras.backend` of Keras 2, for models in a graph with a session.
        kwargs: further attributes and their values, which can be pickled.

    Raises:
        ValueError: the model is not built.

    Examples:
        >>> model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
        >>> state = hvd.elastic.TensorFlowKerasState(model, tf.keras.optimizers.SGD(), epoch=0)
        >>> state.commit()
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        self.backend = backend
        super().__init__(model, optimizer, **kwargs)

    def _read(self, group: Sequence[Any]) -> list[Any]:
        if tf.executing_eagerly() or self.backend is None:
            return super()._read(group)
        return list(self.backend.batch_get_value(list(group)))

    def _write(self, group: Sequence[Any], values: list[Any]) -> None:
        if tf.executing_eagerly() or self.backend is None:
            super()._write(group, values)
        else:
            self.backend.batch_set_value(list(zip(group, values, strict=False)))


class TensorFlowState(VariablesState):
    """Elastic state of variables, and further objects by name. All are attributes of the state.

    Sums of gradients of these variables, which an optimizer keeps between backward passes of a step, belong to it.

    Args:
        variables: the variables. The default is the global variables of a TensorFlow 1 graph.
        session: the session of a TensorFlow 1 graph. The default is the current one. Eager variables need none.
        kwargs: further attributes and their values, which can be pickled.

    Examples:
        >>> weights = tf.Variable([1.0])
        >>> state = hvd.elastic.TensorFlowState([weights], epoch=0)
        >>> _ = weights.assign([5.0])
        >>> state.restore()  # the values of the last commit
        >>> weights.numpy().tolist()
        [1.0]
    """

    def __init__(self, variables: Sequence[Any] | None = None, session: Any = None, **kwargs: Any) -> None:
        self.variables = list(tf.compat.v1.global_variables() if variables is None else variables)
        self.session = session or tf.compat.v1.get_default_session()
        self._sums = LivingSums(self._read, self._write, None if self.session is None else self.session.graph)
        super().__init__({"variables": lambda: self.variables}, **kwargs)

    def _partial_sums(self) -> PartialSums:
        return self._sums

    def _trained(self) -> Sequence[Any]:
        return self.variables

    def _read(self, group: Sequence[Any]) -> list[Any]:
        return super()._read(group) if self.session is None else list(self.session.run(list(group)))

    def _write(self, group: Sequence[Any], values: list[Any]) -> None:
        if self.session is None:
            super()._write(group, values)
            return
        for variable, value in zip(group, values, strict=False):
            variable.load(value, self.session)


__all__ = ["ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run"]
__dir__ = __all__.copy  # for completion in editors and shells
