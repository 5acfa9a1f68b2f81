"""perseus_like.torch: Horovod's PyTorch API. `import perseus_like.torch as hvd`."""

from perseus_like import adapter_exports, run
from perseus_like.adapter_exports import *
from perseus_like.collectives import barrier
from perseus_like.errors import UnavailableError as _UnavailableError
from perseus_like.frameworks import torch as _torch
from perseus_like.operations import Adasum, Average, Max, Min, Product, Sum

from . import data_movement, elastic, mpi_ops, ops, reductions
from .compression import Compression
from .data_movement import *
from .functions import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters
from .ops import *
from .optimizer import DistributedOptimizer
from .parameter_memory import share_parameters, unshare_parameters
from .reductions import *
from .sharded_optimizer import ZeroRedundancyOptimizer
from .sharing import shared
from .sparse import sparse_allreduce_async
from .sync_batch_norm import SyncBatchNorm
from .tensors import empty


def _check_has_gpu() -> bool:
    """Returns whether torch finds a CUDA device. Programs use this name of Horovod although it is private."""
    return bool(_torch.cuda.is_available())


def as_gloo() -> None:
    """Makes the backend `gloo` of torch.distributed mean perseus for tensors on the CPU, from this call on.

    It holds for `init_process_group` and `new_group` with `gloo`, with `cpu:gloo,cuda:nccl`, and without a backend if
    there is no GPU. Groups that exist stay as they are. The environment variable PERSEUS_AS_GLOO=1 and
    `perseusrun --as-gloo` do the same for whole programs. A second call does nothing.

    Errors: UnavailableError if the installed torch has no torch.distributed, or one that this library does not know.
    """
    if not _torch.distributed.is_available():
        raise _UnavailableError("as_gloo(): this torch has no torch.distributed; install another build of torch")
    from perseus_like_autoload import use_as_gloo

    try:
        use_as_gloo(_torch.distributed)
    except AttributeError as error:
        raise _UnavailableError(
            f"as_gloo(): this release of torch is not known ({error}); name the backend perseus instead of gloo"
        ) from error


__all__ = [
    "Compression",
    "DistributedOptimizer",
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
__all__ += adapter_exports.__all__
__all__ += ["Adasum", "Average", "Max", "Min", "Product", "Sum"]
__all__ += data_movement.__all__
__all__ += ops.__all__
__all__ += reductions.__all__
__dir__ = __all__.copy  # for completion in editors and shells
