"""horovod.common.basics: the functions of perseus_like.basics as methods of an object."""

from __future__ import annotations

from typing import Any

from .. import basics
from ..collectives import Op
from ..process_set_registration import require_set
from ..process_sets import ProcessSet, global_process_set, registered_ranks
from . import util


class MPI:
    """Stands for mpi4py's module in annotations. This package does not import mpi4py, since the import starts MPI."""

    class Comm:
        """A communicator."""


class HorovodBasics:
    """Horovod's access to its compiled library. All frameworks share one library here, so the arguments are ignored."""

    def __init__(self, pkg_path: str, *args: str) -> None:
        pass

    Average, Sum, Adasum, Min, Max, Product = Op

    init = staticmethod(basics.init)
    shutdown = staticmethod(basics.shutdown)
    is_initialized = staticmethod(basics.is_initialized)
    start_timeline = staticmethod(basics.start_timeline)
    stop_timeline = staticmethod(basics.stop_timeline)
    size = staticmethod(basics.size)
    local_size = staticmethod(basics.local_size)
    cross_size = staticmethod(basics.cross_size)
    rank = staticmethod(basics.rank)
    local_rank = staticmethod(basics.local_rank)
    cross_rank = staticmethod(basics.cross_rank)
    is_homogeneous = staticmethod(basics.is_homogeneous)
    mpi_threads_supported = staticmethod(basics.mpi_threads_supported)
    mpi_enabled = staticmethod(basics.mpi_enabled)
    mpi_built = staticmethod(basics.mpi_built)
    gloo_enabled = staticmethod(basics.gloo_enabled)
    gloo_built = staticmethod(basics.gloo_built)
    nccl_built = staticmethod(basics.nccl_built)
    ddl_built = staticmethod(basics.ddl_built)
    ccl_built = staticmethod(basics.ccl_built)
    cuda_built = staticmethod(basics.cuda_built)
    rocm_built = staticmethod(basics.rocm_built)

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        return registered_ranks()

    def _comm_process_set_id(self, comm: Any) -> int:
        """Returns the id of the set of this communicator's ranks. Collective among them. ValueError without a set."""
        return require_set(comm)


__all__ = ["MPI", "HorovodBasics", "ProcessSet", "global_process_set", "util"]
