"""Tests of Adasum of optimizer steps: each rank's optimizer makes its step, and NumPy combines these steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import perseus_like.torch as hvd  # noqa: E402
from perseus_like.torch.optimizer import _DistributedAdasumOptimizer  # noqa: E402

from ..reference import adasum  # noqa: E402
from .training import assert_equal_parameters, batch, build, grad_scaler, loss_of, part  # noqa: E402

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
}


def train_alone(make: Callable[[Any], Any], steps: int, size: int, passes: int = 1) -> Any:
    """Trains all ranks' models in one process, each with its optimizer.

    Combines the steps by Adasum after every step.
    """
    models = [build("mlp") for _ in range(size)]
    optimizers = [make(model.parameters()) for model in models]
    for step in range(steps):
        starts = [parameter.detach().numpy().copy() for parameter in models[0].parameters()]
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad()
            for one in range(passes):
                inputs, targets = batch(passes * step + one, size)
                loss_of(model, part(inputs, rank), part(targets, rank)).backward()
            optimizer.step()
        for start, *parameters in zip(starts, *(model.parameters() for model in models), strict=True):
            moved = start + adasum([parameter.detach().numpy() - start for parameter in parameters])
            for parameter in parameters:
                with torch.no_grad():
                    parameter.copy_(torch.from_numpy(np.asarray(moved)))
    return models[0]


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
@pytest.mark.parametrize("passes", [1, 2])
def test_training(make: Callable[[Any], Any], passes: int, rank: int, size: int) -> None:
    model = build("mlp")
    optimizer = hvd.DistributedOptimizer(
        make(model.parameters()), model.named_parameters(), op=hvd.Adasum, backward_passes_per_step=passes
    )
    assert isinstance(optimizer, _DistributedAdasumOptimizer)
    for step in range(4):
        optimizer.zero_grad()
        for one in range(passes):
            inputs, targets = batch(passes * step + one, size)
            loss_of(model, part(inputs, rank), part(targets, rank)).backward()
        optimizer.step()
    assert_equal_parameters(model, train_alone(make, 4, size, passes))


def test_a_closure_and_a_rank_without_gradients(rank: int, size: int) -> None:
    model = build("mlp", torch.float32)
    for parameter in list(model.parameters())[:2]:
        parameter.requires_grad_(False)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), op=hvd.Adasum, compression=hvd.Compression.fp16
    )
    inputs, targets = batch(0, size, torch.float32)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = loss_of(model, part(inputs, 0), part(targets, 0))
        if rank == 0:
            loss.backward()
        return loss

    assert optimizer.step(closure).item() > 0
    moved = [not torch.equal(one, two) for one, two in zip(before, model.parameters(), strict=True)]
    assert moved == [False, False] + [True] * (len(before) - 2)
    for parameter in model.parameters():
        everybody = hvd.allgather(parameter.detach()[None])
        assert (everybody == everybody[0]).all()


def test_unsupported_calls_are_errors(size: int) -> None:
    model = build("mlp")
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), op=hvd.Adasum)
    with pytest.raises(AssertionError, match="makes no sense"), optimizer.skip_synchronize():
        pass
    with pytest.raises(ValueError, match="needs op=Average"):
        hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), op=hvd.Adasum, gradient_predivide_factor=2.0
        )
    if size > 1:
        scaler = grad_scaler()
        scaler.scale(loss_of(model, *batch(0, 1))).backward()
        with pytest.raises(ValueError, match="GradScaler and op=Adasum"):
            scaler.step(optimizer)
