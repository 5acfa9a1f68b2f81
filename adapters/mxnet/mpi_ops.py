"""The module `horovod.mxnet.mpi_ops`: names from ops.py and perseus_like."""

from perseus_like import adapter_exports
from perseus_like.adapter_exports import *
from perseus_like.common.basics import HorovodBasics
from perseus_like.operations import Adasum, Average, Max, Min, Product, Sum
from perseus_like.operations import resolve_op as handle_average_backwards_compatibility

from . import ops
from .ops import *

# Programs use this name of Horovod although it is private.
_basics = HorovodBasics(__file__)

__all__ = [
    "handle_average_backwards_compatibility",
]
__all__ += adapter_exports.__all__
__all__ += ["Adasum", "Average", "Max", "Min", "Product", "Sum"]
__all__ += ops.__all__
