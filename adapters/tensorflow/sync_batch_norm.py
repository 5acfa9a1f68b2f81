"""The module `horovod.tensorflow.sync_batch_norm`; SyncBatchNormalization is a layer of Keras."""

import keras
import tensorflow as tf

from perseus_like import rank, size
from perseus_like.collectives import Sum
from perseus_like.keras.sync_batch_norm import SyncBatchNormalization, SyncBatchNormalizationImpl

if not issubclass(keras.layers.BatchNormalization, tf.keras.layers.BatchNormalization):  # tf.keras is another Keras

    @tf.keras.utils.register_keras_serializable(package="perseus_like")
    class SyncBatchNormalization(SyncBatchNormalizationImpl, tf.keras.layers.BatchNormalization):  # type: ignore[no-redef,misc]
        __doc__ = SyncBatchNormalizationImpl.__doc__


__all__ = ["Sum", "SyncBatchNormalization", "rank", "size"]
