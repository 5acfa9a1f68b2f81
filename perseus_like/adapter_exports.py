"""The names that every adapter offers beside its verbs: the session, ranks, process sets, build queries, errors."""

import importlib
from types import ModuleType

from .errors import (
    DisagreementError,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    NotInitializedError,
    PeerLostError,
    ShutDownError,
    TimedOutError,
    TransportError,
    UnavailableError,
    UnsupportedOpError,
)
from .process_set_registration import add_process_set
from .process_sets import ProcessSet, global_process_set, remove_process_set
from .world import (
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


def adapter(framework: str) -> ModuleType:
    """Returns `perseus_like.<framework>`, for code that serves several frameworks. ImportError if it is missing."""
    return importlib.import_module(f".{framework}", __package__)


__all__ = [
    "DisagreementError",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "NotInitializedError",
    "PeerLostError",
    "ProcessSet",
    "ShutDownError",
    "TimedOutError",
    "TransportError",
    "UnavailableError",
    "UnsupportedOpError",
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
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
