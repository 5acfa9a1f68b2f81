"""perseus_like.mxnet: Horovod's MXNet API. `import perseus_like.mxnet as hvd`."""

from . import mxnet_setup  # noqa: F401, I001  # first, because the others import MXNet

from perseus_like import adapter_exports
from perseus_like.collectives import barrier, join
from perseus_like.adapter_exports import *
from perseus_like.operations import Adasum, Average, Max, Min, Product, Sum

from . import data_movement, mpi_ops, reductions
from .compression import Compression
from .data_movement import *
from .functions import allgather_object, broadcast_object, broadcast_parameters
from .kvstore import create, register
from .memory import empty
from .optimizer import DistributedOptimizer
from .reductions import *
from .sync_batch_norm import PerseusSyncBatchNorm, inject
from .trainer import DistributedTrainer

# Makes the names of the store and of the layer known to MXNet.
register()
inject()

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "PerseusSyncBatchNorm",
    "allgather_object",
    "barrier",
    "broadcast_object",
    "broadcast_parameters",
    "create",
    "empty",
    "join",
    "mpi_ops",
]
__all__ += adapter_exports.__all__
__all__ += ["Adasum", "Average", "Max", "Min", "Product", "Sum"]
__all__ += data_movement.__all__
__all__ += reductions.__all__
__dir__ = __all__.copy  # for completion in editors and shells
