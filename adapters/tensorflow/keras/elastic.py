"""Elastic training with tf.keras: `KerasState`, callbacks that keep it, and `run` around the training function."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from perseus_like.elastic import ObjectState, State
from perseus_like.keras import callback_impl as impl

from ..elastic import TensorFlowKerasState, run


class KerasState(TensorFlowKerasState):
    """Elastic state of a built tf.keras model, its optimizer, and further objects by name."""

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer=optimizer, backend=tf.keras.backend, **kwargs)


class CommitStateCallback(impl.CommitStateCallbackImpl, tf.keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = impl.CommitStateCallbackImpl.__doc__


class UpdateBatchStateCallback(impl.UpdateBatchStateCallbackImpl, tf.keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = impl.UpdateBatchStateCallbackImpl.__doc__


class UpdateEpochStateCallback(impl.UpdateEpochStateCallbackImpl, tf.keras.callbacks.Callback):  # type: ignore[misc]
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
