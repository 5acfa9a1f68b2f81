"""Calls that are impossible with CUDA tensors fail on all ranks, and the group continues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pretended_streams import OnDevice, to_device, values  # type: ignore[import-not-found]


def here(count: int = 4) -> torch.Tensor:
    return torch.ones(count)


def there(count: int = 4) -> OnDevice:
    return to_device(torch.ones(count))


def coalesced(tensors: list[torch.Tensor]) -> None:
    group: Any = dist.group.WORLD
    group.allreduce_coalesced(tensors, dist.AllreduceCoalescedOptions())


MIXED: dict[str, Callable[[int], Any]] = {
    "all_gather": lambda n: dist.all_gather([here()] * n, there()),
    "one output of all_gather": lambda n: dist.all_gather([*([there()] * (n - 1)), here()], there()),
    "all_gather_into_tensor": lambda n: dist.all_gather_into_tensor(here(4 * n), there()),
    "reduce_scatter": lambda n: dist.reduce_scatter(there(), [here()] * n),
    "one input of reduce_scatter": lambda n: dist.reduce_scatter(there(), [there()] * (n - 1) + [here()]),
    "reduce_scatter_tensor": lambda n: dist.reduce_scatter_tensor(here(), there(4 * n)),
    "all_to_all": lambda n: dist.all_to_all([here()] * n, [there()] * n),
    "one input of all_to_all": lambda n: dist.all_to_all([there()] * n, [*([there()] * (n - 1)), here()]),
    "all_to_all_single": lambda n: dist.all_to_all_single(there(n), here(n)),
    "scatter": lambda n: dist.scatter(here(), [there()] * n if dist.get_rank() == 0 else None, 0),
    "all_reduce_coalesced": lambda n: coalesced([here(), there()]),
}


@pytest.mark.parametrize("call", MIXED)
def test_two_devices_in_one_call(call: str, rank: int, size: int) -> None:
    with pytest.raises(Exception, match=r"on one device|on several devices|on the host") as raised:
        MIXED[call](size)
    assert isinstance(raised.value, ValueError | RuntimeError)
    tensor = there()
    dist.all_reduce(tensor)
    assert values(tensor) == [size] * 4


def test_two_devices_on_one_rank(rank: int, size: int) -> None:
    """The other ranks learn why they get no result."""
    with pytest.raises((ValueError, RuntimeError), match="all tensors of a call must be on one device"):
        dist.all_gather([here() if rank == 0 else there()] * size, there())
    dist.barrier()


def test_one_rank_on_the_cpu(rank: int) -> None:
    with pytest.raises(RuntimeError, match="rank 0 has it on the host, rank 1 has it on an accelerator"):
        dist.all_reduce(here() if rank == 0 else there())
    dist.barrier()


def test_another_device_than_the_process_has(rank: int) -> None:
    dist.all_reduce(there())
    with pytest.raises((ValueError, RuntimeError), match="a process has one device"):
        dist.all_reduce(OnDevice(here(), torch.device("cuda", 1)) if rank == 0 else there())
    dist.barrier()


def test_averages_of_uint64() -> None:
    with pytest.raises(ValueError, match=r"uint64 tensors on cuda:0 are not averaged .* pass tensor\.cpu\(\)"):
        dist.all_reduce(to_device(torch.ones(3).to(torch.uint64)), op=dist.ReduceOp.AVG)
    dist.barrier()
