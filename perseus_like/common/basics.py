"""horovod.common.basics: the functions of perseus_like.world as methods of an object."""

from __future__ import annotations

from typing import Any

from .. import world
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

    init = staticmethod(world.init)
    shutdown = staticmethod(world.shutdown)
    is_initialized = staticmethod(world.is_initialized)
    start_timeline = staticmethod(world.start_timeline)
    stop_timeline = staticmethod(world.stop_timeline)
    size = staticmethod(world.size)
    local_size = staticmethod(world.local_size)
    cross_size = staticmethod(world.cross_size)
    rank = staticmethod(world.rank)
    local_rank = staticmethod(world.local_rank)
    cross_rank = staticmethod(world.cross_rank)
    is_homogeneous = staticmethod(world.is_homogeneous)
    mpi_threads_supported = staticmethod(world.mpi_threads_supported)
    mpi_enabled = staticmethod(world.mpi_enabled)
    mpi_built = staticmethod(world.mpi_built)
    gloo_enabled = staticmethod(world.gloo_enabled)
    gloo_built = staticmethod(world.gloo_built)
    nccl_built = staticmethod(world.nccl_built)
    ddl_built = staticmethod(world.ddl_built)
    ccl_built = staticmethod(world.ccl_built)
    cuda_built = staticmethod(world.cuda_built)
    rocm_built = staticmethod(world.rocm_built)

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        return registered_ranks()

    def _comm_process_set_id(self, comm: Any) -> int:
        """Returns the id of the set of this communicator's ranks. Collective among them. ValueError without a set."""
        return require_set(comm)


__all__ = ["MPI", "HorovodBasics", "ProcessSet", "global_process_set", "util"]
