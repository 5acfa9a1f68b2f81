"""Finds the core's process set for a process group of torch.distributed."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from perseus_like.process_sets import ProcessSet, global_process_set
from perseus_like.session import session

_OTHERWISE = (
    "call perseus_like.torch.init() or torch.distributed.init_process_group('perseus') first, or use torch's own class "
    "of this name"
)


def process_set_of(group: Any, owner: str = "DistributedDataParallel") -> ProcessSet:
    """Returns the process set of the same ranks. `owner` is the name of the class that needs it, for error texts.

    RuntimeError if there is no running job, or one of other ranks than torch.distributed has. ValueError for a group
    that the core does not know.
    """
    _require_job(owner)
    if group is None:
        return global_process_set
    if isinstance(group, ProcessSet):
        group.require_id()
        return group
    process_set = getattr(group, "process_set", None)
    if isinstance(process_set, ProcessSet):
        return process_set
    if list(dist.get_process_group_ranks(group)) == list(range(session.core.size())):
        return global_process_set
    raise ValueError(
        f"{owner}: process_group has backend {dist.get_backend(group)!r}; it must be a group of the "
        f"backend 'perseus', or a ProcessSet"
    )


def _require_job(owner: str) -> None:
    is_grouped = dist.is_available() and dist.is_initialized()
    theirs = (dist.get_rank(), dist.get_world_size()) if is_grouped else None
    if not session.is_running():
        backend = "" if theirs is None else f" (torch.distributed communicates over {dist.get_backend()!r})"
        raise RuntimeError(f"{owner}: no job is running here{backend}; {_OTHERWISE}")
    ours = (session.core.rank(), session.core.size())
    if theirs is not None and theirs != ours:
        raise RuntimeError(
            f"{owner}: this process is rank {ours[0]} of {ours[1]} in the job, but rank {theirs[0]} of "
            f"{theirs[1]} to torch.distributed; start all of it with one launcher"
        )
