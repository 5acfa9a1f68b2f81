"""Finds torch's own DistributedDataParallel around a model, which knows nothing of this library."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from perseus_like.errors import UnavailableError
from perseus_like.process_sets import ProcessSet

from ..compat.training import existing_wrappers
from ..parameter_memory import Named


def wrapper_of_torch(named: Sequence[Named], process_set: ProcessSet) -> torch.nn.Module | None:
    """Returns the torch DistributedDataParallel that averages gradients of these parameters over the set, or None.

    UnavailableError if it averages over other ranks than those of the set, or has some of the parameters only.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return None
    wanted = {id(each) for _, each in named}
    for each in existing_wrappers():
        averaged = wanted & {id(parameter) for parameter in each.parameters()}
        if not averaged:
            continue
        if averaged == wanted and sorted(dist.get_process_group_ranks(each.process_group)) == process_set.ranks:
            return each
        raise UnavailableError(
            "ZeroRedundancyOptimizer: torch's DistributedDataParallel averages gradients over other ranks than the "
            "optimizer, or has only some of its parameters, which is not possible on several hosts; wrap the whole "
            "model for the ranks of the optimizer, or omit DistributedDataParallel"
        )
    return None
