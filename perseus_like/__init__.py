"""Distributed training with Horovod's programming model. Frameworks: perseus_like.torch, perseus_like.numpy, …"""

from .basics import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from .errors import HorovodInternalError, HostsUpdatedInterrupt
from .launch.run_function import run
from .process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set

__version__ = "0.1.0"

__all__ = [
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ProcessSet",
    "__version__",
    "add_process_set",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "remove_process_set",
    "rocm_built",
    "run",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
