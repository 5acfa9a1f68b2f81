"""The module `horovod.tensorflow.mpi_ops`."""

import re
from collections.abc import Sequence
from typing import Any

from perseus_like import adapter_exports
from perseus_like.adapter_exports import *
from perseus_like.common.basics import HorovodBasics
from perseus_like.common.util import gpu_available
from perseus_like.common.util import num_rank_is_power_2 as check_num_rank_power_of_2
from perseus_like.operations import Adasum, Average, Max, Min, Product, Sum
from perseus_like.operations import resolve_op as handle_average_backwards_compatibility

from .functions import broadcast_
from .ops import *
from .rank_tensors import local_rank_op, local_size_op, process_set_included_op, rank_op, size_op
from .util import _executing_eagerly as _executing_eagerly

# Programs use these names of Horovod although they are private.
_basics = HorovodBasics(__file__)


def _normalize_name(name: str) -> str:
    """`name` with an underscore for each character that TensorFlow does not allow in the name of a node."""
    return re.sub("[^a-zA-Z0-9_]", "_", name)


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


def _grouped_allreduce(tensors: Sequence[Any], name: str | None = None, op: int = Sum, **kwargs: Any) -> list[Any]:
    """`grouped_allreduce` that sums."""
    return grouped_allreduce(tensors, op=op, name=name, **kwargs)


def _reducescatter(tensor: Any, name: str | None = None, op: int = Sum, **kwargs: Any) -> Any:
    """`reducescatter` that sums."""
    return reducescatter(tensor, op=op, name=name, **kwargs)


def _grouped_reducescatter(tensors: Sequence[Any], name: str | None = None, op: int = Sum, **kwargs: Any) -> list[Any]:
    """`grouped_reducescatter` that sums."""
    return grouped_reducescatter(tensors, op=op, **kwargs)


__all__ = [
    "allgather",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "check_num_rank_power_of_2",
    "gpu_available",
    "grouped_allgather",
    "handle_average_backwards_compatibility",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "size_op",
]
__all__ += adapter_exports.__all__
__all__ += ["Adasum", "Average", "Max", "Min", "Product", "Sum"]
