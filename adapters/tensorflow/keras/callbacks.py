"""Callbacks for `fit` of tf.keras, by Horovod's names."""

from __future__ import annotations

import tensorflow as tf

from perseus_like.keras import callback_impl as impl


class BroadcastGlobalVariablesCallback(impl.BroadcastGlobalVariablesCallbackImpl, tf.keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = impl.BroadcastGlobalVariablesCallbackImpl.__doc__


class MetricAverageCallback(impl.MetricAverageCallbackImpl, tf.keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = impl.MetricAverageCallbackImpl.__doc__


class LearningRateScheduleCallback(impl.LearningRateScheduleCallbackImpl, tf.keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = impl.LearningRateScheduleCallbackImpl.__doc__


class LearningRateWarmupCallback(impl.LearningRateWarmupCallbackImpl, tf.keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = impl.LearningRateWarmupCallbackImpl.__doc__


class BestModelCheckpoint(impl.BestModelCheckpointImpl, tf.keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    __doc__ = impl.BestModelCheckpointImpl.__doc__


__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]
__dir__ = __all__.copy  # for completion in editors and shells
