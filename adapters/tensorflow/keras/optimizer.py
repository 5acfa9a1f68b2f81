"""DistributedOptimizer with Horovod's order of arguments for tf.keras."""

from __future__ import annotations

from typing import Any

from perseus_like.collectives import Average
from perseus_like.docstrings import documented_as
from perseus_like.gradients import Groups, number_of_groups
from perseus_like.keras import optimizer as _keras
from perseus_like.keras.ops import Compression
from perseus_like.keras.optimizer import PartialDistributedOptimizer as PartialDistributedOptimizer
from perseus_like.keras.optimizer import distribute
from perseus_like.process_sets import ProcessSet, global_process_set


@documented_as(_keras.DistributedOptimizer)
def DistributedOptimizer(  # noqa: N802
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Returns the result of perseus_like.keras.DistributedOptimizer with the same arguments."""
    groups = number_of_groups(num_groups, groups)
    return distribute(
        *(optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op),
        *(backward_passes_per_step, average_aggregated_gradients, groups, process_set, scale_local_gradients),
    )
