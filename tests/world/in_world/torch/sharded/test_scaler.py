"""GradScaler with the sharded optimizer: all ranks find the infinities of one rank, as without shard=True."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import perseus_like.torch as hvd

from ..training import grad_scaler

STEPS = 5
STRANGE = 2  # the step in which the last rank differs
SCALE = 2.0**10

Change = Callable[[list[torch.nn.Parameter]], None]  # of the gradients of the last rank


def fill_with(value: float, place: int) -> Change:
    """Returns a function that writes one element of the gradients, which are numbered over all parameters."""

    def change(parameters: list[torch.nn.Parameter]) -> None:
        for each, start in zip(parameters, (0, 64), strict=True):
            if each.grad is not None and start <= place < start + each.numel():
                each.grad.data[place - start] = value

    return change


def train(
    shard: bool, unscales: bool, set_to_none: bool, last_passes: tuple[bool, bool], change: Change | None
) -> list[list[float]]:
    """Trains two models with two optimizers and one scaler. Returns the scale and the weights after each step.

    Args:
        last_passes: for each model, whether the last rank makes a backward pass in the step STRANGE.
        change: what the last rank does to the gradients of the first model in that step, before GradScaler looks.
    """
    models = [[torch.nn.Parameter(torch.ones(64)), torch.nn.Parameter(torch.ones(3))] for _ in range(2)]
    plain = [torch.optim.SGD(parameters, lr=0.1, momentum=0.9) for parameters in models]
    optimizers = [
        hvd.DistributedOptimizer(each, shard=True) if shard else hvd.DistributedOptimizer(each) for each in plain
    ]
    scaler = grad_scaler(init_scale=SCALE, growth_interval=2)
    history = []
    for step in range(STEPS):
        is_strange = step == STRANGE and hvd.rank() == hvd.size() - 1
        for parameters, optimizer, passes in zip(models, optimizers, last_passes, strict=True):
            optimizer.zero_grad(set_to_none)
            loss = sum(((each * (hvd.rank() + 1)).sin().sum() for each in parameters), torch.zeros(()))
            scaled = scaler.scale(loss)
            if passes or not is_strange:
                scaled.backward()
        if is_strange and change is not None:
            change(models[0])
        for optimizer in optimizers:
            if unscales:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
        scaler.update()
        weights = [each.detach().clone() for parameters in models for each in parameters]
        history.append([scaler.get_scale(), *torch.cat(weights).tolist()])
        hvd.barrier()  # the ranks share the weights
    return history


def require_trained_alike(
    unscales: bool, set_to_none: bool, last_passes: tuple[bool, bool], change: Change | None
) -> list[list[float]]:
    """Trains with and without shard=True. Returns the scales and the weights with it."""
    sharded = train(True, unscales, set_to_none, last_passes, change)
    everybody = hvd.allgather_object(sharded)
    assert all(each == sharded for each in everybody)
    return sharded


both = pytest.mark.parametrize("unscales", [False, True])


@both
@pytest.mark.parametrize("place", [0, 63, 66])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_an_infinity_of_one_rank(value: float, place: int, unscales: bool) -> None:
    """The element may be in the shard of any rank. No rank steps the first model, and all steps of the second."""
    history = require_trained_alike(unscales, True, (True, True), fill_with(value, place))
    before, after = history[STRANGE - 1 : STRANGE + 1]
    assert after[0] == before[0] / 2
    assert after[1:68] == before[1:68]
    assert after[68:] != before[68:]


@pytest.mark.usefixtures("two_ranks")
@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shard", [False, True])
def test_an_infinity_of_the_sum(shard: bool, dtype: torch.dtype, unscales: bool) -> None:
    """The gradients of each rank are finite. Their sum is not, and no rank steps."""
    weight = torch.nn.Parameter(torch.ones(64, dtype=dtype))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), op=hvd.Sum, shard=shard)
    scaler = grad_scaler(init_scale=SCALE)
    for factor in (1.0, 2e38 / SCALE):
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        if unscales:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == SCALE / 2
    torch.testing.assert_close(weight.detach(), torch.full_like(weight, 1 - 0.1 * hvd.size()), rtol=1e-2, atol=0)


@pytest.mark.usefixtures("two_ranks")
@both
@pytest.mark.parametrize("set_to_none", [False, True])
@pytest.mark.parametrize("last_passes", [(False, True), (False, False)])
def test_one_rank_makes_no_backward_pass(last_passes: tuple[bool, bool], set_to_none: bool, unscales: bool) -> None:
    """Its gradients count as zeros, as they do without shard=True."""
    sharded = require_trained_alike(unscales, set_to_none, last_passes, None)
    whole = train(False, unscales, set_to_none, last_passes, None)
    torch.testing.assert_close(torch.tensor(sharded), torch.tensor(whole))


@both
def test_a_rank_that_joins(unscales: bool) -> None:
    """The others find infinities without it, also for an optimizer that is not the first."""
    parameters = [torch.nn.Parameter(torch.ones(4)) for _ in range(2)]
    optimizers = [hvd.DistributedOptimizer(torch.optim.SGD([each], lr=0.1), shard=True) for each in parameters]
    scaler = grad_scaler(init_scale=SCALE)
    is_last = hvd.rank() == hvd.size() - 1
    for step in range(2 if is_last else 3):
        for parameter, optimizer in zip(parameters, optimizers, strict=True):
            optimizer.zero_grad()
            scaler.scale(parameter.sum() * (math.inf if step == 2 and hvd.rank() == 0 else 1.0)).backward()
            if unscales:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == (SCALE if is_last else SCALE / 2)
    hvd.join()
    for each in parameters:
        torch.testing.assert_close(each.detach(), torch.full((4,), 0.8))
