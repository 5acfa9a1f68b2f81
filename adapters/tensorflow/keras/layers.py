"""SyncBatchNormalization for tf.keras: the same class as Keras', unless tf.keras is another Keras."""

import keras
import tensorflow as tf

from perseus_like.keras.sync_batch_norm import SyncBatchNormalization, SyncBatchNormalizationImpl

if not issubclass(keras.layers.BatchNormalization, tf.keras.layers.BatchNormalization):

    @tf.keras.utils.register_keras_serializable(package="perseus_like")
    class SyncBatchNormalization(SyncBatchNormalizationImpl, tf.keras.layers.BatchNormalization):  # type: ignore[no-redef,misc]
        __doc__ = SyncBatchNormalizationImpl.__doc__


__all__ = ["SyncBatchNormalization"]
