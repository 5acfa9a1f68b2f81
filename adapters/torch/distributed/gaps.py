"""Where torch.distributed asks for a backend by name, ours is let in."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d


@functools.cache
def close() -> None:
    """`monitored_barrier` refuses every backend that is not called gloo."""
    original: Any = distributed_c10d.monitored_barrier

    @functools.wraps(original)
    def monitored_barrier(
        group: Any = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        from .process_group import PerseusGroup

        chosen = distributed_c10d._get_default_group() if group is None else group
        if not isinstance(chosen, PerseusGroup):
            original(group, timeout, wait_all_ranks)
            return
        limit = timedelta(seconds=timeout) if isinstance(timeout, float | int) else timeout
        chosen.monitored_barrier(limit, wait_all_ranks)

    distributed_c10d.monitored_barrier = monitored_barrier
    dist.monitored_barrier = monitored_barrier
