"""Checks that calls that are impossible with CUDA tensors fail on all ranks, and that the group continues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pretended_streams import OnDevice, to_device, values  # type: ignore[import-not-found]


def on_host(count: int = 4) -> torch.Tensor:
    return torch.ones(count)


def on_device(count: int = 4) -> OnDevice:
    return to_device(torch.ones(count))


def coalesced(tensors: list[torch.Tensor]) -> None:
    group: Any = dist.group.WORLD
    group.allreduce_coalesced(tensors, dist.AllreduceCoalescedOptions())


MIXED: dict[str, Callable[[int], Any]] = {
    "all_gather": lambda n: dist.all_gather([on_host()] * n, on_device()),
    "one output of all_gather": lambda n: dist.all_gather([*([on_device()] * (n - 1)), on_host()], on_device()),
    "all_gather_into_tensor": lambda n: dist.all_gather_into_tensor(on_host(4 * n), on_device()),
    "reduce_scatter": lambda n: dist.reduce_scatter(on_device(), [on_host()] * n),
    "one input of reduce_scatter": lambda n: dist.reduce_scatter(on_device(), [on_device()] * (n - 1) + [on_host()]),
    "reduce_scatter_tensor": lambda n: dist.reduce_scatter_tensor(on_host(), on_device(4 * n)),
    "all_to_all": lambda n: dist.all_to_all([on_host()] * n, [on_device()] * n),
    "one input of all_to_all": lambda n: dist.all_to_all([on_device()] * n, [*([on_device()] * (n - 1)), on_host()]),
    "all_to_all_single": lambda n: dist.all_to_all_single(on_device(n), on_host(n)),
    "scatter": lambda n: dist.scatter(on_host(), [on_device()] * n if dist.get_rank() == 0 else None, 0),
    "all_reduce_coalesced": lambda n: coalesced([on_host(), on_device()]),
}


@pytest.mark.parametrize("call", MIXED)
def test_two_devices_in_one_call(call: str, rank: int, size: int) -> None:
    with pytest.raises(Exception, match=r"on one device|on several devices|on the host") as raised:
        MIXED[call](size)
    assert isinstance(raised.value, ValueError | RuntimeError)
    tensor = on_device()
    dist.all_reduce(tensor)
    assert values(tensor) == [size] * 4


def test_two_devices_on_one_rank(rank: int, size: int) -> None:
    """One rank passes tensors on two devices. The error reaches the other ranks, too."""
    with pytest.raises((ValueError, RuntimeError), match="all tensors of a call must be on one device"):
        dist.all_gather([on_host() if rank == 0 else on_device()] * size, on_device())
    dist.barrier()


def test_one_rank_on_the_cpu(rank: int) -> None:
    with pytest.raises(RuntimeError, match="rank 0 has it on the host, rank 1 has it on an accelerator"):
        dist.all_reduce(on_host() if rank == 0 else on_device())
    dist.barrier()


def test_another_device_than_the_process_has(rank: int) -> None:
    dist.all_reduce(on_device())
    with pytest.raises((ValueError, RuntimeError), match="a process has one device"):
        dist.all_reduce(OnDevice(on_host(), torch.device("cuda", 1)) if rank == 0 else on_device())
    dist.barrier()


@pytest.mark.skipif(not hasattr(torch, "uint64"), reason=f"torch {torch.__version__} has no uint64")
def test_averages_of_uint64() -> None:
    with pytest.raises(ValueError, match=r"uint64 tensors on cuda:0 are not averaged .* pass tensor\.cpu\(\)"):
        dist.all_reduce(to_device(torch.ones(3).to(torch.uint64)), op=dist.ReduceOp.AVG)
    dist.barrier()
