"""perseus_like.tensorflow.keras: Horovod's API for tf.keras, which is Keras 3, or Keras 2 if the user has chosen it."""

from perseus_like import adapter_exports, run
from perseus_like.adapter_exports import *
from perseus_like.collectives import Adasum, Average, Sum
from perseus_like.keras.ops import Compression, allgather, broadcast, broadcast_global_variables, reducescatter

from . import callbacks, elastic
from .ops import SyncBatchNormalization, allreduce, load_model
from .optimizer import DistributedOptimizer, PartialDistributedOptimizer

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "Sum",
    "SyncBatchNormalization",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "elastic",
    "load_model",
    "reducescatter",
    "run",
]
__all__ += adapter_exports.__all__


def __dir__() -> list[str]:
    """Returns the public names, for completion in editors and shells."""
    return __all__
