"""Horovod's path of the verbs: horovod.tensorflow.mpi_ops."""

from typing import Any

from perseus_like import common_api
from perseus_like.collectives import Adasum, Average, Max, Min, Product, Sum
from perseus_like.common.basics import HorovodBasics
from perseus_like.common_api import *

from .functions import broadcast_
from .numbers import local_rank_op, local_size_op, process_set_included_op, rank_op, size_op
from .ops import allgather, allreduce, alltoall, barrier, broadcast, grouped_allgather, join

# Horovod's users reach for these, private as they are.
_basics = HorovodBasics(__file__)


def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """`allreduce` that sums."""
    return allreduce(
        tensor,
        op=op,
        name=name,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
    )


__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "size_op",
]
__all__ += common_api.__all__
