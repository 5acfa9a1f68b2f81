"""Checks what training programs use besides an optimizer: batch norms, state of all ranks, join and elastic state."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import nn

import perseus_like.torch as hvd
from perseus_like.torch.elastic import TorchState


def rows(count: int) -> torch.Tensor:
    """Returns the same rows on all ranks, in double precision."""
    return torch.randn(count * hvd.size(), 6, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def mine(all_rows: torch.Tensor) -> torch.Tensor:
    return all_rows.chunk(hvd.size())[hvd.rank()].cuda()


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    ("dtype", "parameters", "tolerance"),
    [
        (torch.float64, torch.float64, 1e-7),
        (torch.float32, torch.float32, 1e-4),
        (torch.float16, torch.float32, 2e-2),  # as autocast does
        (torch.bfloat16, torch.bfloat16, 1e-1),
    ],
    ids=str,
)
def test_batch_norm_over_all_ranks(
    dtype: torch.dtype, parameters: torch.dtype, tolerance: float, channels_last: bool
) -> None:
    images = rows(4 * 5 * 5).view(-1, 5, 5, 6).permute(0, 3, 1, 2).to(dtype).double().contiguous()
    alone, synced = nn.BatchNorm2d(6).double(), hvd.SyncBatchNorm(6).to(parameters).cuda()
    whole = images.clone().requires_grad_()
    alone(whole).pow(3).sum().backward()
    part = mine(images).to(dtype)
    if channels_last:
        part = part.contiguous(memory_format=torch.channels_last)
    synced(part.requires_grad_()).pow(3).sum().backward()
    assert whole.grad is not None
    assert part.grad is not None
    assert synced.weight.grad is not None
    close: dict[str, Any] = {"rtol": tolerance, "atol": tolerance}
    assert synced.running_mean is not None
    assert synced.running_var is not None
    torch.testing.assert_close(part.grad.double(), mine(whole.grad), **close)
    weights = hvd.allreduce(synced.weight.grad.double(), op=hvd.Sum).cpu()
    torch.testing.assert_close(weights, alone.weight.grad, rtol=tolerance, atol=tolerance * len(images))
    torch.testing.assert_close(synced.running_mean.double().cpu(), alone.running_mean, **close)
    torch.testing.assert_close(synced.running_var.double().cpu(), alone.running_var, **close)


def test_parameters_and_optimizer_state_of_rank_0() -> None:
    torch.manual_seed(hvd.rank())
    model = nn.Linear(50, 30).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01 * (1 + hvd.rank()))
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(3, 50, device="cuda")).square().sum().backward()
        optimizer.step()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] == 0.01
    for tensor in [*model.parameters(), *(state["exp_avg"] for state in optimizer.state.values())]:
        assert tensor.is_cuda
        everywhere = hvd.allgather(tensor.detach().reshape(1, -1))
        assert torch.equal(everywhere, everywhere[:1].expand_as(everywhere))


@pytest.mark.skipif(os.environ.get("PERSEUS_NCCL_REGISTER") == "1", reason="registered memory forbids join()")
def test_ranks_with_different_numbers_of_steps() -> None:
    for step in range(3 + hvd.rank()):
        active = sum(step < 3 + rank for rank in range(hvd.size()))
        total = hvd.allreduce(torch.ones(1000, device="cuda"), op=hvd.Sum, name=f"step {step}")
        assert total.tolist() == [active] * 1000
    assert hvd.join() == hvd.size() - 1


def test_a_process_set_of_one_rank_scales_all_elements() -> None:
    sets = [hvd.add_process_set([rank]) for rank in range(hvd.size())] if hvd.size() > 1 else [hvd.global_process_set]
    # NCCL before 2.29.7 leaves out the last elements of such counts (its issue 1950).
    for count in (40_001, 40_049, 1_000_003):
        for dtype in (torch.float32, torch.float64):
            tensor = torch.full((count,), 3.0, dtype=dtype, device="cuda")
            own = sets[hvd.rank()]
            result = hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=0.5, name=f"{count} {dtype}", process_set=own)
            assert torch.equal(result.cpu(), torch.full((count,), 1.5, dtype=dtype))
    for each in sets if hvd.size() > 1 else []:
        hvd.remove_process_set(each)


def test_elastic_state_on_the_device() -> None:
    model = nn.Linear(40, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state = TorchState(model=model, optimizer=optimizer, step=1)
    state.sync()
    model(torch.ones(2, 40, device="cuda")).sum().backward()
    optimizer.step()
    state.commit()
    committed = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.add_(1.0)
    state.step = 2
    state.restore()
    assert state.step == 1
    assert model.weight.is_cuda
    assert torch.equal(model.weight, committed)


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average], ids=["sum", "average"])
def test_gradients_accumulated_over_two_passes(op: int) -> None:
    inputs = rows(8).float()

    def gradient_of(distributed: bool) -> torch.Tensor:
        torch.manual_seed(1)
        model = nn.Linear(6, 3).cuda()
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        if distributed:
            named = model.named_parameters()
            optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=named, op=op, backward_passes_per_step=2)
        before = model.weight.detach().clone()
        for part in mine(inputs).chunk(2) if distributed else [inputs.cuda()]:
            model(part).square().sum().backward()
        optimizer.step()
        return before - model.weight.detach()

    share = 1.0 if op == hvd.Sum else 1.0 / hvd.size()
    torch.testing.assert_close(gradient_of(True), gradient_of(False) * share, rtol=1e-4, atol=1e-4)
