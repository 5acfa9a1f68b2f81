"""Elastic training with Keras: `KerasState`, callbacks that keep it, and `run` around the training function."""

from __future__ import annotations

from typing import Any

import keras

from perseus_like.elastic import ObjectState, State

from . import backends
from . import callback_impl as impl

_backend = backends.chosen()
TensorFlowKerasState = _backend.TensorFlowKerasState
run = _backend.run


class KerasState(TensorFlowKerasState):  # type: ignore[misc,valid-type]
    """Elastic state of a model, its optimizer, and further objects by name (epoch, batch, …), which are attributes.

    Args:
        model: the model, which is built.
        optimizer: its optimizer. The default is the one that the model was compiled with.
        kwargs: further attributes and their values, which can be pickled.

    Raises:
        ValueError: the model is not built.

    Examples:
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", loss="mse")
        >>> state = hvd.elastic.KerasState(model, batch=0, epoch=0)
        >>> state.commit()
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer=optimizer, backend=keras.backend, **kwargs)


class CommitStateCallback(impl.CommitStateCallbackImpl, keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = impl.CommitStateCallbackImpl.__doc__


class UpdateBatchStateCallback(impl.UpdateBatchStateCallbackImpl, keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = impl.UpdateBatchStateCallbackImpl.__doc__


class UpdateEpochStateCallback(impl.UpdateEpochStateCallbackImpl, keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = impl.UpdateEpochStateCallbackImpl.__doc__


__all__ = [
    "CommitStateCallback",
    "KerasState",
    "ObjectState",
    "State",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]
__dir__ = __all__.copy  # for completion in editors and shells
