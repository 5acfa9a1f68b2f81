"""A small model with its data, and its training in one process for comparison."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

STEPS = 3
ROWS = 4  # the number of rows of each rank


def make_model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))


def batch(step: int, size: int) -> torch.Tensor:
    return torch.randn(size * ROWS, 8, generator=torch.Generator().manual_seed(step))


def train(model: Any, optimizer: torch.optim.Optimizer, rows: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for step in range(STEPS):
        optimizer.zero_grad()
        model(rows(batch(step, dist.get_world_size()))).pow(2).mean().backward()
        optimizer.step()


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def mine(rows: torch.Tensor) -> torch.Tensor:
    return rows[ROWS * dist.get_rank() :][:ROWS]


def alone() -> dict[str, torch.Tensor]:
    model = make_model()
    train(model, adam(model.parameters()), lambda rows: rows)
    return model.state_dict()


def assert_as_alone(state: dict[str, torch.Tensor]) -> None:
    for name, expected in alone().items():
        torch.testing.assert_close(state[name], expected, atol=1e-6, rtol=0)
