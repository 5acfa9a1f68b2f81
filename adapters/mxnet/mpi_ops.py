"""The module `horovod.mxnet.mpi_ops`: the collectives on MXNet's arrays.

Each returns an array that MXNet's engine fills in when all ranks have called it. `priority` goes to MXNet's engine; it
rarely has an effect, because the engine starts a collective as soon as its arrays are ready. Wrong arguments raise an
error at the call. Errors that only the other ranks or the engine can know are raised when a program waits for the
result.
"""

from perseus_like import adapter_exports
from perseus_like.adapter_exports import *
from perseus_like.common.basics import HorovodBasics
from perseus_like.operations import Adasum, Average, Max, Min, Product, Sum
from perseus_like.operations import resolve_op as handle_average_backwards_compatibility

from . import data_movement, reductions
from .data_movement import *
from .reductions import *

# Programs use this name of Horovod although it is private.
_basics = HorovodBasics(__file__)

__all__ = [
    "handle_average_backwards_compatibility",
]
__all__ += adapter_exports.__all__
__all__ += ["Adasum", "Average", "Max", "Min", "Product", "Sum"]
__all__ += data_movement.__all__
__all__ += reductions.__all__
