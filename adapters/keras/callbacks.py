"""Callbacks for `fit`, by Horovod's names."""

from __future__ import annotations

from typing import Any

import keras

from . import callback_impl as impl


class BroadcastGlobalVariablesCallback(impl.BroadcastGlobalVariablesCallbackImpl, keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = impl.BroadcastGlobalVariablesCallbackImpl.__doc__


class MetricAverageCallback(impl.MetricAverageCallbackImpl, keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = impl.MetricAverageCallbackImpl.__doc__


class LearningRateScheduleCallback(impl.LearningRateScheduleCallbackImpl, keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = impl.LearningRateScheduleCallbackImpl.__doc__


class LearningRateWarmupCallback(impl.LearningRateWarmupCallbackImpl, keras.callbacks.Callback):  # type: ignore[misc]
    __doc__ = impl.LearningRateWarmupCallbackImpl.__doc__


class BestModelCheckpoint(impl.BestModelCheckpointImpl, keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    __doc__ = impl.BestModelCheckpointImpl.__doc__

    def __init__(
        self, monitor: str = "val_loss", verbose: int = 0, mode: str = "auto", save_freq: Any = "epoch"
    ) -> None:
        super().__init__(monitor, verbose, mode=mode, save_freq=save_freq)


__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]
__dir__ = __all__.copy  # for completion in editors and shells
