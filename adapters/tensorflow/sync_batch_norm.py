"""The module `horovod.tensorflow.sync_batch_norm`; SyncBatchNormalization is a layer of Keras."""

from perseus_like import rank, size
from perseus_like.collectives import Sum

from .keras.ops import SyncBatchNormalization

__all__ = ["Sum", "SyncBatchNormalization", "rank", "size"]
