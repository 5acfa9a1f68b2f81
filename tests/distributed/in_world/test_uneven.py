"""Tests of ranks with different numbers of batches, and of optimizers that step in hooks of DDP's buckets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import ddp_zero_hook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from perseus_like.torch.nn import parallel

from .training import batch, make_model, mine

BOTH = pytest.mark.parametrize(
    "wrap", [DistributedDataParallel, parallel.DistributedDataParallel], ids=["torch", "ours"]
)
RATE = 0.1
STEPS = 8


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=RATE, momentum=0.9)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, rows: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(rows).pow(2).mean().backward()
    optimizer.step()


def as_one_process(size: int, divisor: Callable[[int], int]) -> nn.Module:
    """Trains one process with the batches of all ranks, of which rank r has r + 1, and returns the model.

    `divisor` returns the divisor of the sum of gradients, given the number of ranks that have a batch.
    """
    model = make_model()
    optimizer = sgd(model.parameters())
    for number in range(size):
        optimizer.zero_grad()
        present = range(number, size)
        for rank in present:
            (model(batch(number, size).chunk(size)[rank]).pow(2).mean() / divisor(len(present))).backward()
        optimizer.step()
    return model


def assert_same(model: nn.Module, expected: nn.Module) -> None:
    for (name, found), wanted in zip(model.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0, msg=name)


@BOTH
@pytest.mark.parametrize("by_all", [True, False])
def test_ranks_without_batches_follow_the_others(wrap: Any, by_all: bool, rank: int, size: int) -> None:
    model = wrap(make_model())
    optimizer = sgd(model.parameters())
    with model.join(divide_by_initial_world_size=by_all):
        for number in range(1 + rank):
            step(model, optimizer, mine(batch(number, size)))
    assert_same(model.module, as_one_process(size, (lambda _: size) if by_all else (lambda present: present)))


@BOTH
@pytest.mark.parametrize("by_all", [True, False])
def test_training_ends_on_all_ranks_if_requested(wrap: Any, by_all: bool, rank: int, size: int) -> None:
    model = wrap(make_model())
    optimizer = sgd(model.parameters())
    taken = []

    def until_one_ends() -> None:
        with model.join(divide_by_initial_world_size=by_all, throw_on_early_termination=True):
            for number in range(1 + rank):
                step(model, optimizer, mine(batch(number, size)))
                taken.append(number)

    with pytest.raises(RuntimeError, match=r"exhausted|no batches left"):
        until_one_ends()
    assert taken == [0]


def test_zero_joins_beside_ddp(rank: int, size: int) -> None:
    """DDP and ZeroRedundancyOptimizer in one Join give the same result over perseus as over gloo."""

    def trained(group: Any) -> Any:
        model = DistributedDataParallel(make_model(), process_group=group)
        zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, process_group=group, lr=RATE)
        with Join([model, zero]):
            for number in range(1 + rank):
                step(model, zero, mine(batch(number, size)))
        return model.module

    assert_same(trained(dist.group.WORLD), trained(dist.new_group(backend="gloo")))


@pytest.mark.parametrize("by_all", [True, False])
def test_zero_joins_beside_ddp_of_this_library(by_all: bool, rank: int, size: int) -> None:
    """Ranks without batches get the gradients, too, because they hold a part of the optimizer's state."""
    model = parallel.DistributedDataParallel(make_model())
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=RATE, momentum=0.9)
    with Join([model, zero], divide_by_initial_world_size=by_all):
        for number in range(1 + rank):
            step(model, zero, mine(batch(number, size)))
    assert_same(model.module, as_one_process(size, (lambda _: size) if by_all else (lambda present: present)))


class Counting(nn.Module):
    """Has a buffer that counts the steps of its rank, and a parameter that some passes do not use."""

    steps: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = make_model()
        self.seldom = nn.Parameter(torch.zeros(1))
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        found: torch.Tensor = self.linear(rows)
        return found + self.seldom if self.steps.item() == 1 else found


def assert_same_on_all_ranks(model: nn.Module, size: int) -> None:
    states: list[Any] = [None] * size
    dist.all_gather_object(states, {name: tensor.tolist() for name, tensor in model.state_dict().items()})
    assert all(each == states[0] for each in states)


def test_two_models_of_this_library_join_together(rank: int, size: int) -> None:
    """Two models of this library's class join together: one has buffers and unused parameters, one has a hook."""
    first = parallel.DistributedDataParallel(Counting(), find_unused_parameters=True)
    second = parallel.DistributedDataParallel(make_model())
    second.register_comm_hook(None, allreduce_hook)
    optimizer = sgd([*first.parameters(), *second.parameters()])
    with Join([first, second]):
        for number in range(1 + rank):
            rows = mine(batch(number, size))
            optimizer.zero_grad()
            for model in (first, second):
                model(rows).pow(2).mean().backward()
            optimizer.step()
    assert_same_on_all_ranks(first, size)
    assert_same_on_all_ranks(second, size)
    assert first.state_dict()["module.steps"].item() == size


def test_join_with_passes_that_reduce_nothing(rank: int, size: int) -> None:
    model = parallel.DistributedDataParallel(Counting(), find_unused_parameters=True)
    optimizer = sgd(model.parameters())
    with Join([model]):
        for number in range(1 + rank):
            rows = mine(batch(number, size))
            optimizer.zero_grad()
            with model.no_sync():
                model(rows).pow(2).mean().backward()
            with torch.no_grad():
                model(rows)
            model(rows).pow(2).mean().backward()
            optimizer.step()
    assert_same_on_all_ranks(model, size)
    assert model.state_dict()["module.steps"].item() == 3 * size
    step(model, optimizer, mine(batch(0, size)))  # the model still trains after the join


def test_join_that_ends_training_on_all_ranks(rank: int, size: int) -> None:
    model = parallel.DistributedDataParallel(make_model())
    optimizer = sgd(model.parameters())
    taken = []

    def until_one_ends() -> None:
        with Join([model], throw_on_early_termination=True):
            for number in range(1 + rank):
                step(model, optimizer, mine(batch(number, size)))
                taken.append(number)

    with pytest.raises(RuntimeError, match="exhausted"):
        until_one_ends()
    assert taken == [0]


def test_join_of_a_part_of_the_ranks(rank: int, size: int) -> None:
    group = dist.new_group([0, size - 1])
    if rank not in (0, size - 1):
        return
    place, both = int(rank > 0), min(size, 2)
    model = parallel.DistributedDataParallel(make_model(), process_group=group)
    optimizer = sgd(model.parameters())
    with Join([model]):
        for number in range(1 + place):
            step(model, optimizer, batch(number, both).chunk(both)[place])
    assert_same(model.module, as_one_process(both, lambda _: both))


@pytest.mark.parametrize("kind", ["hook_with_zero_step", "hook_with_zero_step_interleaved"])
@pytest.mark.parametrize("shard_buckets", [False, True])
def test_zero_steps_within_the_backward_pass(kind: str, shard_buckets: bool, size: int) -> None:
    """ZeRO's steps in hooks give the right weights. The callbacks share lists, so they must not run concurrently."""
    model = DistributedDataParallel(make_model(), bucket_cap_mb=0.0001)
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=RATE, momentum=0.9)
    try:
        hook = getattr(ddp_zero_hook, kind)(allreduce_hook, model, zero, shard_buckets=shard_buckets)
    except RuntimeError as refused:  # torch 2.1
        pytest.skip(f"torch {torch.__version__}: {refused}")
    model.register_comm_hook(None, hook)
    for number in range(STEPS):
        model.zero_grad()
        model(mine(batch(number, size))).pow(2).mean().backward()

    expected = make_model()
    optimizer = sgd(expected.parameters())
    for number in range(2, STEPS):  # ZeRO makes no updates in the first two steps, in which it learns the buckets
        step(expected, optimizer, batch(number, size))
    assert_same(model.module, expected)
