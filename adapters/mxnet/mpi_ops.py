"""Horovod's path of the verbs: what is here lies in ops.py and perseus_like."""

from perseus_like import common_api
from perseus_like.collectives import Adasum, Average, Max, Min, Product, Sum
from perseus_like.collectives import resolve_op as handle_average_backwards_compatibility
from perseus_like.common.basics import HorovodBasics
from perseus_like.common_api import *

from .ops import (
    allgather,
    allreduce,
    allreduce_,
    alltoall,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_reducescatter,
    reducescatter,
)

# Horovod's users reach for it, private as it is.
_basics = HorovodBasics(__file__)

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "reducescatter",
]
__all__ += common_api.__all__
