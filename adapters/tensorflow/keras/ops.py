"""Functions with other defaults than in perseus_like.keras, and SyncBatchNormalization for tf.keras."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import keras
import tensorflow as tf

from perseus_like.keras import ops, saving
from perseus_like.keras.ops import *
from perseus_like.keras.sync_batch_norm import SyncBatchNormalization, SyncBatchNormalizationImpl

if not issubclass(keras.layers.BatchNormalization, tf.keras.layers.BatchNormalization):  # tf.keras is another Keras

    @tf.keras.utils.register_keras_serializable(package="perseus_like")
    class SyncBatchNormalization(SyncBatchNormalizationImpl, tf.keras.layers.BatchNormalization):  # type: ignore[no-redef,misc]
        __doc__ = SyncBatchNormalizationImpl.__doc__


def allreduce(  # type: ignore[no-redef]
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Returns the average over all ranks, or another reduction by `op`."""
    if op is not None and average is not None:
        raise ValueError("op and average were both given; average is deprecated, use op alone")
    return ops.allreduce(value, name, average is not False, prescale_factor, postscale_factor, op, compression)


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Does the same as perseus_like.keras.load_model, by tf.keras."""
    return saving.load(tf.keras, filepath, custom_optimizers, custom_objects, compression)


__all__ = ["SyncBatchNormalization", "load_model"]
__all__ += ops.__all__
