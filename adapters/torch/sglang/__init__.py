"""sglang on CPUs over this library.

    SGLANG_PLUGINS=perseus python -m sglang.launch_server --device cpu --tp-size 2 --model-path MODEL

sglang has no class for communicators on CPUs. Its groups call a kernel of its own where that is built, else the process
group of `gloo`. The plugin replaces the class of groups, and makes `gloo` this library's backend.
"""

from __future__ import annotations

import torch
from sglang.srt.distributed.parallel_state import GroupCoordinator
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from ..mpi_ops import Sum
from ..reductions import allreduce_


class PerseusGroupCoordinator(GroupCoordinator):  # type: ignore[misc]
    """A group of sglang. It adds CPU tensors by this library directly. Other collectives take the process group."""

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        """Sums a CPU tensor in place. Returns `input_`."""
        if self.world_size == 1 or not input_.is_cpu:
            result: torch.Tensor = super().all_reduce(input_)
            return result
        return allreduce_(input_, op=Sum, name=self.unique_name, process_set=self.device_group.process_set)


def register() -> None:
    """Makes sglang use the class above, once it has loaded its plugins."""
    HookRegistry.register(
        f"{GroupCoordinator.__module__}.{GroupCoordinator.__name__}", PerseusGroupCoordinator, HookType.REPLACE
    )
