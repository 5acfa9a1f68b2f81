"""Gradients of the sharded optimizer: large ones, which it does not copy if they belong to the rank's own shard, and
those with a graph.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.nn.utils import parameters_to_vector as flat

import perseus_like.torch as hvd

from ..training import assert_equal_parameters, batch, build, loss_of, part


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.Adamax])
def test_large_gradients(cls: Any, dtype: torch.dtype) -> None:
    """Those of a rank's own shard are not copied. They may also be added, assigned, sparse or transposed."""
    tolerance: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-6} if dtype is torch.float32 else {"rtol": 0.02, "atol": 0.02}

    def large_model() -> torch.nn.Sequential:
        torch.manual_seed(0)
        return torch.nn.Sequential(*[torch.nn.Linear(290, 290) for _ in range(2 * hvd.size() + 1)]).to(dtype)

    def gradients_of(by: int, step: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(100 * step + by)
        shapes = [each.shape for each in alone.parameters()]
        return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]

    def assign(model: torch.nn.Module, gradients: list[torch.Tensor], step: int) -> None:
        for number, (each, gradient) in enumerate(zip(model.parameters(), gradients, strict=True)):
            kind = (number // 2 + step) % 5 if each.ndim == 2 else 0
            if kind == 1:
                gradient = gradient.t().contiguous().t()
            if kind == 2:
                gradient = gradient.to_sparse()
            if kind < 4:
                each.grad = gradient
                continue
            torch.autograd.backward((each.float() * gradient.float()).sum())  # added to nothing, and to that
            torch.autograd.backward((each.float() * gradient.float()).sum())

    model, alone = large_model(), large_model()
    optimizer = hvd.ZeroRedundancyOptimizer(model.parameters(), cls, lr=0.01)
    plain = cls(alone.parameters(), lr=0.01)
    for step in range(6):
        optimizer.zero_grad()
        plain.zero_grad()
        assign(model, gradients_of(hvd.rank(), step), step)
        by_rank = []
        for by in range(hvd.size()):
            assign(alone, gradients_of(by, step), step)
            by_rank.append([each.grad.to_dense().float() for each in alone.parameters() if each.grad is not None])
            plain.zero_grad()
        for each, *parts in zip(alone.parameters(), *by_rank, strict=True):
            each.grad = torch.stack(parts).mean(0).to(dtype)
        if step % 2:
            expected = torch.nn.utils.clip_grad_norm_(alone.parameters(), 1.0)
            torch.testing.assert_close(optimizer.clip_grad_norm_(1.0), expected.float(), rtol=0.01, atol=0.0)
        optimizer.step()
        plain.step()
        torch.testing.assert_close(flat(model.parameters()), flat(alone.parameters()), **tolerance)


@pytest.mark.filterwarnings("ignore:.*create_graph")
@pytest.mark.parametrize("adds_loss", [False, True])
def test_a_penalty_made_of_gradients(adds_loss: bool, rank: int, size: int) -> None:
    """The penalty of each rank's own gradients, also in the first step."""
    alone, together = (build("mlp", torch.float32) for _ in range(2))
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(together.parameters(), lr=0.1), shard=True, backward_passes_per_step=2
    )

    def compute(model: Any, by: int) -> None:
        mine, wanted = part(inputs, by), part(targets, by)
        loss_of(model, mine, wanted).backward(create_graph=True)
        penalty = sum(parameter.grad.square().sum() for parameter in model.parameters())
        (penalty + loss_of(model, mine, wanted) if adds_loss else penalty).backward()

    for number in range(4):
        inputs, targets = batch(number, size, torch.float32)
        copies = [copy.deepcopy(alone) for _ in range(size)]
        for by, model in enumerate(copies):
            compute(model, by)
        for parameter, *own in zip(alone.parameters(), *(model.parameters() for model in copies), strict=True):
            parameter.grad = torch.stack([each.grad.detach() for each in own]).mean(0)
        plain.step()
        plain.zero_grad()
        optimizer.zero_grad(set_to_none=number % 2 == 0)
        compute(together, rank)
        optimizer.step()
        assert_equal_parameters(together, alone, 1e-5)
