"""Models and batches, and functions that train on all ranks together and in one process on the same global batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import perseus_like.torch as hvd

BATCH = 4  # BATCH is the number of examples per rank


def grad_scaler(**options: Any) -> Any:
    """Returns a scaler for tensors on the CPU. Skips the test if torch has none."""
    if not hasattr(torch.amp, "GradScaler"):
        pytest.skip(f"torch {torch.__version__} has no GradScaler for the CPU")
    return torch.amp.GradScaler("cpu", **options)


class Branching(nn.Module):
    """A model that uses one of two layers, which a program chooses for each step or rank."""

    def __init__(self) -> None:
        super().__init__()
        self.common = nn.Linear(6, 8)
        self.left = nn.Linear(8, 3)
        self.right = nn.Linear(8, 3)

    def forward(self, inputs: Any, use_left: bool = True) -> Any:
        hidden = self.common(inputs).tanh()
        return self.left(hidden) if use_left else self.right(hidden)


class Shared(nn.Module):
    """A model that uses one weight twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, inputs: Any) -> Any:
        return self.last(self.first(self.first(inputs).tanh()))


def mlp() -> Any:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))


def convolutional() -> Any:
    return nn.Sequential(
        *[nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2, padding=1), nn.Tanh(), nn.Conv2d(4, 4, 2), nn.Flatten()],
        nn.LazyLinear(3),
    )


def recurrent() -> Any:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.GRU(2, 8, batch_first=True)
            self.out = nn.Linear(8, 3)

        def forward(self, inputs: Any) -> Any:
            return self.out(self.cells(inputs.reshape(-1, 3, 2))[0][:, -1])

    return Last()


def attention() -> Any:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(2, 1, 8, dropout=0.0, batch_first=True)
            self.out = nn.Linear(6, 3)

        def forward(self, inputs: Any) -> Any:
            return self.out(self.layer(inputs.reshape(-1, 3, 2)).flatten(1))

    return Attention()


def zero_dimensional() -> Any:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.tensor(0.7))
            self.nothing = nn.Parameter(torch.empty(0, 3))
            self.out = nn.Linear(6, 3)

        def forward(self, inputs: Any) -> Any:
            return self.out(inputs) * self.factor + self.nothing.sum()

    return Scaled()


MODELS: dict[str, Callable[[], Any]] = {
    "mlp": mlp,
    "convolutional": convolutional,
    "recurrent": recurrent,
    "attention": attention,
    "shared": Shared,
    "zero_dimensional": zero_dimensional,
}


def build(name: str, dtype: torch.dtype = torch.float64) -> Any:
    """Returns a model with the same weights at every call."""
    torch.manual_seed(3)
    model = MODELS[name]()
    model(torch.zeros(1, 6))
    return model.to(dtype)


def batch(step: int, size: int, dtype: torch.dtype = torch.float64) -> tuple[Any, Any]:
    """Returns the inputs and targets of all ranks."""
    generator = torch.Generator().manual_seed(100 + step)
    inputs = torch.randn(BATCH * size, 6, generator=generator, dtype=torch.float64)
    targets = torch.randn(BATCH * size, 3, generator=generator, dtype=torch.float64)
    return inputs.to(dtype), targets.to(dtype)


def part(tensor: Any, rank: int) -> Any:
    """Returns a rank's share of a global batch."""
    return tensor[rank * BATCH : (rank + 1) * BATCH]


def loss_of(model: Any, inputs: Any, targets: Any) -> Any:
    return (model(inputs) - targets).square().mean()


def assert_equal_parameters(one: Any, two: Any, tolerance: float = 1e-9) -> None:
    for (name, first), second in zip(one.named_parameters(), two.parameters(), strict=True):
        assert torch.allclose(first, second, rtol=tolerance, atol=tolerance), (name, first, second)


def sgd(model: Any, lr: float = 0.1, **options: Any) -> Any:
    return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=lr), model.named_parameters(), **options)


def step(model: Any, optimizer: Any, number: int, rank: int, size: int) -> None:
    optimizer.zero_grad()
    inputs, targets = batch(number, size)
    loss_of(model, part(inputs, rank), part(targets, rank)).backward()
    optimizer.step()


def assert_same_on_all_ranks(model: Any) -> None:
    digests = hvd.allgather_object(b"".join(p.detach().double().numpy().tobytes() for p in model.parameters()))
    assert len(set(digests)) == 1


def branching() -> Any:
    torch.manual_seed(4)
    return Branching().double()
