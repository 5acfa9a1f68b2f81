"""perseus_like.mxnet: Horovod's MXNet API. `import perseus_like.mxnet as hvd`."""

from . import mxnet_setup  # noqa: F401, I001  # first, because the others import MXNet

from perseus_like import adapter_exports
from perseus_like.collectives import barrier, join
from perseus_like.adapter_exports import *
from perseus_like.operations import Adasum, Average, Max, Min, Product, Sum

from . import mpi_ops, ops
from .compression import Compression
from .functions import allgather_object, broadcast_object, broadcast_parameters
from .kvstore import create, register
from .memory import empty
from .ops import *
from .optimizer import DistributedOptimizer
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
__all__ += ops.__all__


def __dir__() -> list[str]:
    """Returns the public names, for completion in editors and shells."""
    return __all__
