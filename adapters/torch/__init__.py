"""perseus_like.torch: Horovod's PyTorch API. `import perseus_like.torch as hvd`."""

import torch as _torch

from perseus_like import HorovodInternalError, common_api, run
from perseus_like.collectives import barrier
from perseus_like.common_api import *
from perseus_like.operations import Adasum, Average, Max, Min, Product, Sum

from . import elastic, mpi_ops, ops
from .compression import Compression
from .functions import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters
from .gloo_name import as_gloo
from .ops import *
from .optimizer import DistributedOptimizer
from .parameter_memory import share_parameters, unshare_parameters
from .sharded_optimizer import ZeroRedundancyOptimizer
from .sharing import shared
from .sparse import sparse_allreduce_async
from .sync_batch_norm import SyncBatchNorm
from .tensors import empty


def _check_has_gpu() -> bool:
    """Returns whether torch finds a CUDA device. Programs use this name of Horovod although it is private."""
    return bool(_torch.cuda.is_available())


__all__ = [
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "SyncBatchNorm",
    "ZeroRedundancyOptimizer",
    "allgather_object",
    "as_gloo",
    "barrier",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "elastic",
    "empty",
    "mpi_ops",
    "run",
    "share_parameters",
    "shared",
    "sparse_allreduce_async",
    "unshare_parameters",
]
__all__ += common_api.__all__
__all__ += ["Adasum", "Average", "Max", "Min", "Product", "Sum"]
__all__ += ops.__all__
