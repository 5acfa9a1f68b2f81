"""Checks groups that use this library for tensors on the CPU and NCCL for those on the GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import perseus_like.torch as hvd


@pytest.fixture(scope="module", params=["cpu:perseus,cuda:nccl", "cpu:gloo,cuda:nccl"], autouse=True)
def group(world: None, request: pytest.FixtureRequest) -> Iterator[str]:
    hvd.as_gloo()
    dist.init_process_group(request.param)
    yield request.param
    dist.destroy_process_group()


def test_each_device_has_its_backend() -> None:
    size, default = dist.get_world_size(), dist.distributed_c10d._get_default_group()
    assert type(default._get_backend(torch.device("cpu"))).__module__.startswith("perseus_like.")
    assert type(default._get_backend(torch.device("cuda"))) is dist.ProcessGroupNCCL
    for place in ("cpu", "cuda"):
        tensor = torch.full((1000,), float(dist.get_rank()), device=place)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [size * (size - 1) / 2] * 1000
    dist.barrier()
    found: list[object] = [None] * size
    dist.all_gather_object(found, {"rank": dist.get_rank()})
    assert found == [{"rank": rank} for rank in range(size)]


def test_a_new_group_has_both() -> None:
    everybody = dist.new_group(list(range(dist.get_world_size())))
    for place in ("cpu", "cuda"):
        tensor = torch.ones(5, device=place)
        dist.broadcast(tensor, 0, group=everybody)
        dist.all_reduce(tensor, group=everybody)
        assert tensor.tolist() == [dist.get_world_size()] * 5
    dist.destroy_process_group(everybody)


def test_ddp_on_the_gpu() -> None:
    def train(distributed: bool) -> torch.Tensor:
        torch.manual_seed(2)
        model: nn.Module = nn.Linear(20, 3).cuda()
        if distributed:
            model = DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
        inputs = torch.randn(4 * dist.get_world_size(), 20, generator=torch.Generator().manual_seed(9))
        part = inputs.chunk(dist.get_world_size())[dist.get_rank()] if distributed else inputs
        model(part.cuda()).square().mean().backward()
        gradient = next(model.parameters()).grad
        assert gradient is not None
        return gradient

    torch.testing.assert_close(train(True), train(False))
