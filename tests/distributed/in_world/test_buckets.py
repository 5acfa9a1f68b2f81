"""Checks that large buckets of torch's DistributedDataParallel and tensors of the program are in shared memory."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import perseus_like.torch as hvd
from perseus_like.torch.compat.core import keeps_identity
from perseus_like.torch.tensors import shared_memory

ROWS = 2  # the number of rows of each rank
WIDTH = 600
STEPS = 5

on_the_host = pytest.mark.skipif("pretended_device" in sys.modules, reason="tensors on a device are not shared")
moved = pytest.mark.skipif(not keeps_identity(), reason=f"buckets do not move with torch {torch.__version__}")


def make_model() -> nn.Module:
    torch.manual_seed(3)
    layers = (nn.Linear(WIDTH, WIDTH, bias=number == 1) for number in range(3))
    return nn.Sequential(*layers).double()


def batch(step: int, size: int) -> torch.Tensor:
    return torch.randn(size * ROWS, WIDTH, generator=torch.Generator().manual_seed(step), dtype=torch.float64)


def train(model: Any, rows: slice, size: int) -> list[torch.Tensor]:
    """Trains a model and returns the gradients of each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=step != 3)
        model(batch(step, size)[rows]).square().mean().backward()
        found += [parameter.grad.clone() for parameter in model.parameters()]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return found


@pytest.mark.parametrize("cap", [3, 25], ids=["many", "one"])
@pytest.mark.parametrize("views", [False, True], ids=["", "views"])
def test_training_equals_one_process(views: bool, cap: int, rank: int, size: int) -> None:
    model = nn.parallel.DistributedDataParallel(make_model(), bucket_cap_mb=cap, gradient_as_bucket_view=views)
    expected = train(make_model(), slice(None), size)
    for mine, theirs in zip(train(model, slice(rank * ROWS, (rank + 1) * ROWS), size), expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-9)
    if views and keeps_identity():  # the gradients are views of buckets that have moved
        large = [parameter.grad for parameter in model.parameters() if parameter.numel() > WIDTH]
        assert all(gradient is not None and gradient.untyped_storage().is_shared() for gradient in large)


@pytest.mark.skipif(keeps_identity(), reason=f"buckets move with torch {torch.__version__}")
def test_buckets_that_do_not_move_are_reported_once(
    rank: int, size: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shared_memory, "_warned", set())
    model = nn.parallel.DistributedDataParallel(make_model())
    train(model, slice(rank * ROWS, (rank + 1) * ROWS), size)
    found = [record.message for record in caplog.records if "stay in private memory" in record.message]
    assert len(found) == 1
    assert f"torch {torch.__version__} does not say when their memory goes" in found[0]


def files_of(process: int) -> set[str]:
    """Returns the inodes of torch's files that the process maps."""
    lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if "/dev/shm/torch_" in line}


@on_the_host
@moved
def test_all_ranks_of_the_host_map_the_buckets(rank: int, size: int) -> None:
    model = nn.parallel.DistributedDataParallel(make_model(), bucket_cap_mb=25)
    train(model, slice(rank * ROWS, (rank + 1) * ROWS), size)
    processes: list[Any] = [None] * size
    dist.all_gather_object(processes, os.getpid())
    found = [files_of(process) for process in processes]
    assert found == [found[0]] * size
    assert len(found[0]) >= size
    dist.barrier()


@on_the_host
@moved
def test_shared_tensors_of_the_program_are_reduced_in_place(rank: int, size: int) -> None:
    tensor = torch.empty(1_000_003).share_memory_()  # type: ignore[no-untyped-call]
    for step in range(4):
        tensor.fill_(rank + step)
        dist.all_reduce(tensor)
        assert tensor.unique().tolist() == [size * step + sum(range(size))]
        hvd.allreduce_(tensor, op=hvd.Average)
        assert tensor.unique().tolist() == [size * step + sum(range(size))]
    processes: list[Any] = [None] * size
    dist.all_gather_object(processes, os.getpid())
    found = [files_of(process) for process in processes]
    assert len(found[0]) >= size
    assert found == [found[0]] * size
    dist.barrier()


def test_memory_of_buckets_is_freed(rank: int, size: int) -> None:
    """When a model is deleted, the memory of its buckets is freed and their descriptors are closed."""

    def use() -> tuple[int, int]:
        model = nn.parallel.DistributedDataParallel(make_model())
        train(model, slice(rank * ROWS, (rank + 1) * ROWS), size)
        del model
        gc.collect()
        rollup = Path("/proc/self/smaps_rollup").read_text().splitlines()
        shared = next(int(line.split()[1]) for line in rollup if line.startswith("Pss_Shmem"))
        return len(list(Path("/proc/self/fd").iterdir())), shared

    descriptors, memory = use()
    for _ in range(3):
        again, more = use()
    bucket = sum(parameter.numel() for parameter in make_model().parameters()) * 8 // 1024
    assert again == descriptors
    assert more - memory < bucket
    dist.barrier()
