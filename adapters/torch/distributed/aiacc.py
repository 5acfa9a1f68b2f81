"""AIACC-Training's functions of `perseus.torch.distributed`: the real world comes from the launcher."""

from __future__ import annotations

import logging
from typing import Any

import torch
import torch.distributed as dist

from perseus_like import world
from perseus_like.launchers import is_launched
from perseus_like.session import session

from .. import functions

_log = logging.getLogger("perseus_like")
_early: list[Any] = []  # the group that get_rank() or a similar function made before the script did


def use_perseus() -> bool:
    """Returns whether ranks communicate through this project: a launcher started them, or a session runs."""
    return session.is_running() or is_launched() or dist.is_torchelastic_launched()


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: Any = None,
    world_size: int = -1,
    rank: int = -1,
    store: Any = None,
    **options: Any,
) -> None:
    """Starts torch.distributed with the backend perseus, whatever `backend` says.

    Under perseusrun, mpirun and torchrun, the launcher defines the rank of this process, and `init_method`,
    `world_size`, `rank` and `store` are ignored. Without a launcher they have the same meaning as in torch.distributed.
    """
    if _early and _early.pop() is dist.group.WORLD:
        return
    if backend not in (None, "perseus"):
        _log.info("init_process_group(%r): perseus is used in its place", backend)
    if is_launched():
        world.init()
    if timeout is not None:  # torch 2.1 refuses None
        options["timeout"] = timeout
    if not is_launched() and not dist.is_torchelastic_launched():
        options |= {"init_method": init_method, "world_size": world_size, "rank": rank, "store": store}
    dist.init_process_group("perseus", **options)


def get_rank(group: Any = None) -> int:
    """Returns this process's rank in the job, or in a group. Joins the job unless init_process_group has done so."""
    return int(dist.get_rank(group)) if _join() else world.rank()


def get_world_size(group: Any = None) -> int:
    """Returns the number of processes in the job or in a group. Joins the job unless init_process_group has done so."""
    return int(dist.get_world_size(group)) if _join() else world.size()


def get_local_rank() -> int:
    """Returns this process's rank among those of its host. Joins the job unless init_process_group has done so."""
    _join()
    return world.local_rank()


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0, model: Any = None) -> None:
    """Copies the root's state and options to the optimizers of all ranks, as perseus_like.torch's function does."""
    _join()
    functions.broadcast_optimizer_state(optimizer, root_rank, model)


def _join() -> bool:
    """Joins the job. Returns whether torch.distributed is initialized."""
    if dist.is_initialized():
        return True
    if dist.is_torchelastic_launched():
        dist.init_process_group("perseus")
        _early[:] = [dist.group.WORLD]
        return True
    world.init()
    return False
