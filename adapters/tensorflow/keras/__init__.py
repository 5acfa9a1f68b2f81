"""perseus_like.tensorflow.keras: Horovod's API for tf.keras, which is Keras 3, or Keras 2 if the user has chosen it."""

from perseus_like import adapter_exports, run
from perseus_like.adapter_exports import *
from perseus_like.collectives import Adasum, Average, Sum

from . import callbacks, elastic, ops
from .ops import *
from .optimizer import DistributedOptimizer, PartialDistributedOptimizer

__all__ = [
    "Adasum",
    "Average",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "Sum",
    "callbacks",
    "elastic",
    "run",
]
__all__ += adapter_exports.__all__
__all__ += ops.__all__
__dir__ = __all__.copy  # for completion in editors and shells
