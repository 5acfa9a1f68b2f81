"""perseus_like.numpy: every collective on NumPy arrays. This is the reference adapter."""

from perseus_like import adapter_exports
from perseus_like.adapter_exports import *
from perseus_like.collectives import barrier, join
from perseus_like.collectives.handle import handles as _handles
from perseus_like.objects import allgather_object, broadcast_object
from perseus_like.operations import Adasum, Average, Max, Min, Product, Sum

from . import data_movement, reductions
from .compression import Compression
from .data_movement import *
from .reductions import *
from .sharing import shared
from .tensors import empty

poll = _handles.poll
synchronize = _handles.synchronize

__all__ = [
    "Compression",
    "allgather_object",
    "barrier",
    "broadcast_object",
    "empty",
    "join",
    "poll",
    "shared",
    "synchronize",
]
__all__ += adapter_exports.__all__
__all__ += ["Adasum", "Average", "Max", "Min", "Product", "Sum"]
__all__ += data_movement.__all__
__all__ += reductions.__all__
__dir__ = __all__.copy  # for completion in editors and shells
