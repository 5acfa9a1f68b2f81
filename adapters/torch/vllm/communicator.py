"""vLLM's communicator on CPUs over this library."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

from ..mpi_ops import Sum
from ..reductions import allreduce_

_WITH_KERNEL = ("tp", "pp")  # the groups, by the beginning of their names, for which vLLM starts its own kernel


class PerseusCommunicator(CpuCommunicator):  # type: ignore[misc]
    """Does all collectives of vLLM by this library: allreduce directly, the others by the process group.

    vLLM's own class, which takes the same arguments, has a kernel in shared memory. Its ranks wait by spinning.
    """

    def __init__(
        self,
        cpu_group: dist.ProcessGroup,
        device: torch.device | None = None,
        device_group: Any = None,
        unique_name: str = "",
        **options: Any,
    ) -> None:
        # Without a name, vLLM does not start the kernel.
        name = "" if unique_name.startswith(_WITH_KERNEL) else unique_name
        super().__init__(cpu_group, device, device_group, name, **options)
        self.unique_name = unique_name
        self._process_set = device_group.process_set  # the platform makes only groups of this library

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        """Sums in place. Returns `input_`."""
        return allreduce_(input_, op=Sum, name=self.unique_name, process_set=self._process_set)
