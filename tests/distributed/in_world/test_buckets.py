"""Large buckets of torch's DistributedDataParallel, which move to memory that the ranks of a host share."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from perseus_like.torch import gradient_memory
from perseus_like.torch.compat.storage import keeps_identity

ROWS = 2  # of each rank
WIDTH = 600
STEPS = 5

moved = pytest.mark.skipif(not keeps_identity(), reason=f"buckets do not move with torch {torch.__version__}")


def make_model() -> nn.Module:
    torch.manual_seed(3)
    layers = (nn.Linear(WIDTH, WIDTH, bias=number == 1) for number in range(3))
    return nn.Sequential(*layers).double()


def batch(step: int, size: int) -> torch.Tensor:
    return torch.randn(size * ROWS, WIDTH, generator=torch.Generator().manual_seed(step), dtype=torch.float64)


def train(model: Any, rows: slice, size: int) -> list[torch.Tensor]:
    """The gradients of each step."""
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
def test_trains_as_one_process_does(views: bool, cap: int, rank: int, size: int) -> None:
    model = nn.parallel.DistributedDataParallel(make_model(), bucket_cap_mb=cap, gradient_as_bucket_view=views)
    expected = train(make_model(), slice(None), size)
    for mine, theirs in zip(train(model, slice(rank * ROWS, (rank + 1) * ROWS), size), expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-9)
    if views and keeps_identity():  # of a bucket that has moved
        large = [parameter.grad for parameter in model.parameters() if parameter.numel() > WIDTH]
        assert all(gradient is not None and gradient.untyped_storage().is_shared() for gradient in large)


@pytest.mark.skipif(keeps_identity(), reason=f"buckets move with torch {torch.__version__}")
def test_buckets_that_stay_are_reported_once(
    rank: int, size: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gradient_memory, "_warned", set())
    model = nn.parallel.DistributedDataParallel(make_model())
    train(model, slice(rank * ROWS, (rank + 1) * ROWS), size)
    found = [record.message for record in caplog.records if "stay in private memory" in record.message]
    assert len(found) == 1
    assert f"torch {torch.__version__} does not say when their memory goes" in found[0]


@moved
def test_a_gradient_in_a_moved_bucket_is_not_sent_to_other_processes(rank: int, size: int) -> None:
    """The file that a queue of torch.multiprocessing would send is no longer the gradient's memory."""
    model = nn.parallel.DistributedDataParallel(make_model(), gradient_as_bucket_view=True)
    train(model, slice(rank * ROWS, (rank + 1) * ROWS), size)
    storage = model.module[0].weight.grad.untyped_storage()
    descriptor, nbytes = storage._share_fd_cpu_()
    with pytest.raises(RuntimeError):
        vars(torch._C.StorageBase)["_new_shared_fd_cpu"](os.dup(descriptor), nbytes)


def test_memory_comes_back(rank: int, size: int) -> None:
    """Buckets give back their memory, and no descriptor stays open."""

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
