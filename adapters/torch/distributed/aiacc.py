"""AIACC-Training's functions of `perseus.torch.distributed`: the real world comes from the launcher."""

from __future__ import annotations

import logging
import sys
from typing import Any

import torch
import torch.distributed as dist

from perseus_like import basics
from perseus_like.session import session

from .. import functions

_log = logging.getLogger("perseus_like")
_early: list[Any] = []  # the group that was started by a question, before the script did


def use_perseus() -> bool:
    """Whether ranks communicate through this project: they were started by a launcher, or have joined."""
    return session.is_running() or _launched() or dist.is_torchelastic_launched()


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

    Under perseusrun, mpirun and torchrun the launcher says who this process is; `init_method`, `world_size`, `rank` and
    `store`, which scripts have for a world of one process per host, are not looked at. Without a launcher they count as
    in torch.distributed.
    """
    if _early and _early.pop() is dist.group.WORLD:
        return
    if backend not in (None, "perseus"):
        _log.info("init_process_group(%r): perseus is used in its place", backend)
    if _launched():
        basics.init()
    if _launched() or dist.is_torchelastic_launched():
        dist.init_process_group("perseus", timeout=timeout, **options)
        return
    where: dict[str, Any] = {"init_method": init_method, "world_size": world_size, "rank": rank, "store": store}
    dist.init_process_group("perseus", timeout=timeout, **where, **options)


def get_rank(group: Any = None) -> int:
    """This process's rank in the job, or in a group. Joins the job, where init_process_group has not."""
    return int(dist.get_rank(group)) if _join() else basics.rank()


def get_world_size(group: Any = None) -> int:
    """The number of processes in the job, or in a group. Joins the job, where init_process_group has not."""
    return int(dist.get_world_size(group)) if _join() else basics.size()


def get_local_rank() -> int:
    """This process's rank among those of its host. Joins the job, where init_process_group has not."""
    _join()
    return basics.local_rank()


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0, model: Any = None) -> None:
    """Root's state and options into the optimizers of all ranks; see `perseus_like.torch.broadcast_optimizer_state`."""
    _join()
    functions.broadcast_optimizer_state(optimizer, root_rank, model)


def _launched() -> bool:
    return session.core.launched(sys.prefix) is not None


def _join() -> bool:
    """True if torch.distributed knows the world; else the job runs now."""
    if dist.is_initialized():
        return True
    if dist.is_torchelastic_launched():
        dist.init_process_group("perseus")
        _early[:] = [dist.group.WORLD]
        return True
    basics.init()
    return False
