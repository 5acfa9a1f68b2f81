"""perseus_like.keras: Horovod's Keras API, on its TensorFlow and torch backends. `import perseus_like.keras as hvd`."""

from perseus_like import adapter_exports, run
from perseus_like.adapter_exports import *
from perseus_like.collectives import Adasum, Average, Sum
from perseus_like.frameworks import keras as _keras  # noqa: F401  # before the others import it

from . import callbacks, elastic, ops
from .ops import *
from .optimizer import DistributedOptimizer, PartialDistributedOptimizer
from .saving import load_model
from .sync_batch_norm import SyncBatchNormalization

__all__ = [
    "Adasum",
    "Average",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "Sum",
    "SyncBatchNormalization",
    "callbacks",
    "elastic",
    "load_model",
    "run",
]
__all__ += adapter_exports.__all__
__all__ += ops.__all__
__dir__ = __all__.copy  # for completion in editors and shells
