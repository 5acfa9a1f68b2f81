"""Optimizer states and parameters once per host, for --zero-1-memory-optimization on CPUs."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist

from perseus_like import torch as hvd
from perseus_like.errors import UnavailableError

from . import state
from .world import World


def shared_optimizer(groups: list[dict[str, Any]], kind: type[torch.optim.Optimizer], world: World, passes: int) -> Any:
    """Returns an optimizer whose step adds the gradients of all ranks and updates memory that the ranks share.

    `passes`: the backward passes of a step.

    Returns None if the parameters, the optimizer or the hosts do not allow it. The model then needs a wrapper that
    averages gradients, and does not need it otherwise.
    """
    if world.size == 1 or dist.get_backend() != "perseus":
        return None
    try:
        optimizer = hvd.ZeroRedundancyOptimizer(groups, kind, backward_passes_per_step=passes)
    except UnavailableError as error:
        state.get_logger().info("--zero-1-memory-optimization: torch's ZeroRedundancyOptimizer, because %s", error)
        return None
    state.get_logger().info("--zero-1-memory-optimization: parameters and optimizer states once per host")
    return optimizer


def is_shared(optimizer: Any) -> bool:
    """Returns whether `shared_optimizer` made the optimizer."""
    return isinstance(optimizer, hvd.ZeroRedundancyOptimizer)


def clip_shared(optimizer: Any, limit: float) -> float:
    """Makes the next step clip the averaged gradients if `limit` is more than 0. Returns their norm."""
    return float(optimizer.clip_grad_norm_(limit if limit > 0 else math.inf))
