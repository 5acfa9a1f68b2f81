"""perseus_like.tensorflow: Horovod's TensorFlow API. `import perseus_like.tensorflow as hvd`."""

import typing as _typing

from perseus_like import adapter_exports, run
from perseus_like.adapter_exports import *
from perseus_like.common.util import gpu_available
from perseus_like.frameworks import tensorflow as _tensorflow  # noqa: F401  # before the others import it
from perseus_like.operations import Adasum, Average, Max, Min, Product, Sum

from . import elastic, mpi_ops, ops, util
from .compression import Compression
from .functions import (
    allgather_object,
    broadcast_,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from .gradient_aggregation import LocalGradientAggregationHelper
from .gradients import _make_allreduce_grads_fn as _make_allreduce_grads_fn
from .mpi_ops import _allreduce as _allreduce
from .mpi_ops import _grouped_allreduce as _grouped_allreduce
from .mpi_ops import _grouped_reducescatter as _grouped_reducescatter
from .mpi_ops import _reducescatter as _reducescatter
from .mpi_ops import check_num_rank_power_of_2, handle_average_backwards_compatibility
from .ops import *
from .optimizer import DistributedOptimizer
from .optimizer import _DistributedAdasumOptimizer as _DistributedAdasumOptimizer
from .optimizer import _DistributedOptimizer as _DistributedOptimizer
from .optimizer import _LegacyOptimizer as _LegacyOptimizer
from .rank_tensors import local_rank_op, local_size_op, process_set_included_op, rank_op, size_op
from .session_hook import BroadcastGlobalVariablesHook
from .sharing import shared
from .tape import DistributedGradientTape, PartialDistributedGradientTape
from .tape import _DistributedGradientTape as _DistributedGradientTape
from .util import _cache as _cache
from .util import _executing_eagerly as _executing_eagerly
from .util import _make_subgraph as _make_subgraph
from .util import refs_to_vars, vars_to_refs

__all__ = [
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "LocalGradientAggregationHelper",
    "PartialDistributedGradientTape",
    "SyncBatchNormalization",
    "allgather_object",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "check_num_rank_power_of_2",
    "elastic",
    "gpu_available",
    "handle_average_backwards_compatibility",
    "local_rank_op",
    "local_size_op",
    "mpi_ops",
    "process_set_included_op",
    "rank_op",
    "refs_to_vars",
    "run",
    "shared",
    "size_op",
    "util",
    "vars_to_refs",
]
__all__ += adapter_exports.__all__
__all__ += ops.__all__
__all__ += ["Adasum", "Average", "Max", "Min", "Product", "Sum"]


if _typing.TYPE_CHECKING:  # with `__getattr__`, a misspelt name would be no error
    from .sync_batch_norm import SyncBatchNormalization
else:

    def __getattr__(name: str) -> _typing.Any:
        """Imports Keras when a program uses SyncBatchNormalization, which is a layer of Keras."""
        if name == "SyncBatchNormalization":
            from .sync_batch_norm import SyncBatchNormalization

            return SyncBatchNormalization
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__dir__ = __all__.copy  # for completion in editors and shells
