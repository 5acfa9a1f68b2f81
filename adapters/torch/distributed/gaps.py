"""Where torch.distributed takes for granted what a group in Python is not: called gloo, or made of C++ objects."""

from __future__ import annotations

import functools
import weakref
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

# By DDP's reducer: the work that its backward pass waits for.
_awaited: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


@functools.cache
def close() -> None:
    """Once in a process."""
    _let_in_monitored_barrier()
    _keep_awaited_works()


def _keep_awaited_works() -> None:
    """DDP.join() hands a work to C++, which does not keep its Python part, and without that waits for ever."""
    cls: Any = dist.Reducer  # type: ignore[attr-defined]
    original = cls._set_forward_pass_work_handle

    @functools.wraps(original)
    def set_and_keep(self: Any, work: Any, *arguments: Any, **options: Any) -> None:
        _awaited[self] = work
        original(self, work, *arguments, **options)

    cls._set_forward_pass_work_handle = set_and_keep


def _let_in_monitored_barrier() -> None:
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
