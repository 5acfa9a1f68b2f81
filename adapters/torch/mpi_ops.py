"""The module `horovod.torch.mpi_ops`."""

from perseus_like import adapter_exports
from perseus_like.adapter_exports import *
from perseus_like.collectives import barrier
from perseus_like.common.basics import HorovodBasics
from perseus_like.common.util import check_installed_version, gpu_available, num_rank_is_power_2
from perseus_like.operations import Adasum, Average, Max, Min, Product, Sum
from perseus_like.operations import resolve_op as handle_average_backwards_compatibility

from . import autograd, data_movement, ops, reductions
from .autograd import *
from .compression import Compression
from .data_movement import *
from .ops import *
from .reductions import *
from .sparse import sparse_allreduce_async

# Programs use this name of Horovod although it is private.
_basics = HorovodBasics(__file__)

__all__ = [
    "Compression",
    "barrier",
    "check_installed_version",
    "gpu_available",
    "handle_average_backwards_compatibility",
    "num_rank_is_power_2",
    "sparse_allreduce_async",
]
__all__ += adapter_exports.__all__
__all__ += ["Adasum", "Average", "Max", "Min", "Product", "Sum"]
__all__ += autograd.__all__
__all__ += data_movement.__all__
__all__ += ops.__all__
__all__ += reductions.__all__
