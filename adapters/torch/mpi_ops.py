"""The module `horovod.torch.mpi_ops`."""

from perseus_like import HorovodInternalError, common_api
from perseus_like.collectives import Adasum, Average, Max, Min, Product, Sum, barrier
from perseus_like.collectives import resolve_op as handle_average_backwards_compatibility
from perseus_like.common.basics import HorovodBasics
from perseus_like.common.util import check_installed_version, gpu_available, num_rank_is_power_2
from perseus_like.common_api import *

from . import ops
from .autograd import (
    HorovodAllgather,
    HorovodAllreduce,
    HorovodAlltoall,
    HorovodBroadcast,
    HorovodGroupedAllgather,
    HorovodGroupedAllreduce,
    HorovodGroupedReducescatter,
    HorovodReducescatter,
)
from .compression import Compression
from .ops import *
from .sparse import sparse_allreduce_async

# Programs use this name of Horovod although it is private.
_basics = HorovodBasics(__file__)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "HorovodAllgather",
    "HorovodAllreduce",
    "HorovodAlltoall",
    "HorovodBroadcast",
    "HorovodGroupedAllgather",
    "HorovodGroupedAllreduce",
    "HorovodGroupedReducescatter",
    "HorovodInternalError",
    "HorovodReducescatter",
    "Max",
    "Min",
    "Product",
    "Sum",
    "barrier",
    "check_installed_version",
    "gpu_available",
    "handle_average_backwards_compatibility",
    "num_rank_is_power_2",
    "sparse_allreduce_async",
]
__all__ += common_api.__all__
__all__ += ops.__all__
