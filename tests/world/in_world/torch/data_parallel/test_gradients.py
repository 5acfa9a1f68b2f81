"""Checks that DistributedDataParallel's gradients after backward equal one process' gradients on all ranks' batches."""

from __future__ import annotations

import copy
import pickle
import pickletools
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import perseus_like.torch as hvd  # noqa: E402

from ..training import (  # noqa: E402
    MODELS,
    assert_equal_parameters,
    assert_same_on_all_ranks,
    batch,
    branching,
    build,
    loss_of,
    part,
)
from .models import (  # noqa: E402
    DistributedDataParallel,
    assert_alike,
    assert_equal_gradients,
    both_gradients,
    pair,
    sgd,
)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("options", [{}, {"bucket_cap_mb": 1e-4, "gradient_as_bucket_view": True}], ids=["", "small"])
def test_gradients_and_steps_equal_those_of_one_process(
    name: str, options: dict[str, Any], rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small buckets are sent during the backward pass, also if no core is free."""
    if options:
        monkeypatch.setattr("perseus_like.torch.gradients._all_cores_compute", lambda _: False)
    parallel, alone = pair(name, **options)
    optimizers = [sgd(parallel), torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)]
    for number in range(5):
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=number % 2 == 0)
        both_gradients(parallel, alone, number, rank, size)
        assert_equal_gradients(parallel, alone)
        for optimizer, model in zip(optimizers, (parallel, alone), strict=True):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    assert_equal_parameters(parallel, alone)
    assert_same_on_all_ranks(parallel)


def test_single_precision(rank: int, size: int) -> None:
    parallel, alone = DistributedDataParallel(build("mlp", torch.float32)), build("mlp", torch.float32)
    for number in range(3):
        parallel.zero_grad()
        alone.zero_grad()
        inputs, targets = batch(number, size, torch.float32)
        loss_of(parallel, part(inputs, rank), part(targets, rank)).backward()
        loss_of(alone, inputs, targets).backward()
        for mine, theirs in zip(parallel.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("views", [False, True], ids=["", "views"])
def test_large_gradients(views: bool, rank: int, size: int) -> None:
    """A gradient that one rank lacks and a gradient with other strides are reduced as well."""

    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.linspace(0, 1, 6))
            self.weights = nn.ParameterList([torch.linspace(-1, 1, 6 << 16).reshape(1 << 16, 6) for _ in range(3)])

        def forward(self, inputs: Any, which: int) -> Any:
            return (inputs + self.bias) @ self.weights[which].t() + self.weights[2].reshape(6, -1).sum(0)

    parallel = DistributedDataParallel(Large().double(), find_unused_parameters=True, gradient_as_bucket_view=views)
    alone = copy.deepcopy(parallel.module)
    for number in range(4):
        for model in (parallel, alone):
            model.zero_grad(set_to_none=number % 2 == 0)
        inputs, _ = batch(number, size)
        if number == 2:
            with parallel.no_sync():
                (parallel(part(inputs, rank), 0).square().mean()).backward()
            sum(alone(part(inputs, each), 0).square().mean() / size for each in range(size)).backward()
        parallel(part(inputs, rank), rank % 2).square().mean().backward()
        sum(alone(part(inputs, each), each % 2).square().mean() / size for each in range(size)).backward()
        assert_equal_gradients(parallel, alone)
    with parallel.join():
        for _ in range(rank + 1):
            parallel.zero_grad()
            parallel(part(inputs, rank), 1).sum().backward()
            assert parallel.module.weights[1].grad is not None


def test_all_ranks_start_with_rank_0s_model(rank: int, size: int) -> None:
    torch.manual_seed(rank)
    model: Any = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    model[1].running_mean.fill_(rank)
    parallel = DistributedDataParallel(model, device_ids=[0], output_device=0)
    assert_same_on_all_ranks(parallel)
    assert (model[1].running_mean == 0).all()
    own = DistributedDataParallel(nn.Linear(1, 1), init_sync=False).module.weight.detach()
    assert len(set(hvd.allgather(own).flatten().tolist())) == size


@pytest.mark.parametrize("sends", [True, False])
def test_buffers(sends: bool, rank: int, size: int) -> None:
    model: Any = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)).double()
    parallel = DistributedDataParallel(model, broadcast_buffers=sends)
    for number in range(2):
        inputs, targets = batch(number, size)
        loss_of(parallel, part(inputs, rank), part(targets, rank)).backward()
    with torch.no_grad():
        parallel.eval()(inputs)
        parallel(inputs)  # later forward passes do not communicate, so one rank may call the model alone
        if rank == 0:
            parallel(inputs)
    means = hvd.allgather(model[1].running_mean.reshape(1, -1))
    assert torch.equal(means, means[:1].expand_as(means)) == (sends or size == 1)


def test_no_sync_adds_gradients(rank: int, size: int) -> None:
    parallel, alone = pair()
    for turn in range(2):
        parallel.zero_grad()
        alone.zero_grad()
        with parallel.no_sync():
            both_gradients(parallel, alone, 3 * turn, rank, size)
            both_gradients(parallel, alone, 3 * turn + 1, rank, size)
        if size > 1:
            sums = hvd.allgather(parallel.module[0].weight.grad.reshape(1, -1))
            assert not torch.equal(sums[0], sums[1])
        both_gradients(parallel, alone, 3 * turn + 2, rank, size)
        assert_equal_gradients(parallel, alone)
    # Reduced gradients stay the same when a further pass adds to them.
    both_gradients(parallel, alone, 9, rank, size)
    assert_equal_gradients(parallel, alone)


@pytest.mark.parametrize("by_rank", [False, True], ids=["all alike", "each rank differently"])
def test_unused_parameters(by_rank: bool, rank: int, size: int) -> None:
    """A layer that no rank has used has no gradient, as in one process."""
    parallel, alone = DistributedDataParallel(branching(), find_unused_parameters=True), branching()
    for number in range(5):
        parallel.zero_grad()
        alone.zero_grad()
        inputs, targets = batch(number, size)
        use_left = [(number + (each if by_rank else 0)) % 2 == 0 for each in range(size)]
        mine = parallel(part(inputs, rank), use_left[rank])
        (mine - part(targets, rank)).square().mean().backward()
        losses = [
            (alone(part(inputs, each), use_left[each]) - part(targets, each)).square().mean() for each in range(size)
        ]
        (sum(losses) / size).backward()
        assert_equal_gradients(parallel, alone)


def test_an_unused_parameter_is_an_error_by_default(rank: int, size: int, two_ranks: None) -> None:
    """The rank that lacks the gradient raises the error after the reduction, so the other ranks continue."""
    parallel = DistributedDataParallel(branching())
    for number in range(3):
        inputs, targets = batch(number, size)
        loss = (parallel(part(inputs, rank), rank % 2 == 0) - part(targets, rank)).square().mean()
        unused = "right" if rank % 2 == 0 else "left"
        with pytest.raises(RuntimeError, match=rf"{unused}\.weight, {unused}\.bias; .*find_unused_parameters"):
            loss.backward()
        assert_alike(parallel.module.common.weight.grad)


def test_static_graph(rank: int, size: int) -> None:
    """Parameters that are unused at first stay unused.

    A layer may occur several times, as in reentrant checkpointing.
    """
    from torch.utils.checkpoint import checkpoint

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last, self.unused = (nn.Linear(6, count) for count in (6, 3, 2))

        def forward(self, inputs: Any, again: bool = True) -> Any:
            inputs = inputs.clone().requires_grad_()
            for _ in range(2):
                inputs = checkpoint(self.first, inputs, use_reentrant=True) if again else self.first(inputs)
                inputs = inputs.tanh()
            return self.last(inputs)

    torch.manual_seed(8)
    alone = Twice().double()
    parallel = DistributedDataParallel(copy.deepcopy(alone), static_graph=True)
    for number in range(4):
        parallel.zero_grad()
        alone.zero_grad()
        both_gradients(parallel, alone, number, rank, size)
        assert_equal_gradients(parallel, alone)
    if size > 1:
        plain = DistributedDataParallel(copy.deepcopy(alone), find_unused_parameters=True)
        with pytest.raises(AssertionError, match="static_graph=True"):
            both_gradients(plain, alone, 0, rank, size)


def test_frozen_and_unfrozen(rank: int, size: int) -> None:
    models = [build("mlp"), build("mlp")]
    for model in models:
        model[0].requires_grad_(False)
    parallel, alone = DistributedDataParallel(models[0]), models[1]
    for number in range(6):
        for model in (parallel.module, alone):
            model.zero_grad()
            model[0].requires_grad_(number >= 2)
            model[3].requires_grad_(number != 4)
        both_gradients(parallel, alone, number, rank, size)
        assert_equal_gradients(parallel, alone)


def test_join(rank: int, size: int) -> None:
    """Rank r has r + 1 batches. Missing batches count as zeros."""
    torch.manual_seed(2)
    model: Any = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)).double()
    alone = copy.deepcopy(model[0])
    parallel = DistributedDataParallel(model, find_unused_parameters=True)
    optimizers = [torch.optim.SGD(parallel.parameters(), lr=0.1), torch.optim.SGD(alone.parameters(), lr=0.1)]
    model.eval()
    model[1].requires_grad_(False)
    with parallel.join():
        for number in range(rank + 1):
            inputs, targets = batch(number, size)
            optimizers[0].zero_grad()
            loss_of(parallel, part(inputs, rank), part(targets, rank)).backward()
            optimizers[0].step()
            model[1].num_batches_tracked += 1
    scale = (1 + 1e-5) ** -0.5  # the scale of a BatchNorm that is not trained
    for number in range(size):
        inputs, targets = batch(number, size)
        optimizers[1].zero_grad()
        losses = [
            (alone(part(inputs, each)) * scale - part(targets, each)).square().mean() for each in range(number, size)
        ]
        (sum(losses) / size).backward()
        optimizers[1].step()
    assert_equal_parameters(model[0], alone)
    assert int(model[1].num_batches_tracked) == size
    assert_same_on_all_ranks(parallel)


def test_join_that_ends_training_on_all_ranks(rank: int, size: int) -> None:
    parallel, _ = pair()
    done = 0

    def train(batches: int) -> None:
        nonlocal done
        with parallel.join(throw_on_early_termination=True):
            for number in range(batches):
                inputs, targets = batch(number, size)
                loss_of(parallel, part(inputs, rank), part(targets, rank)).backward()
                done += 1

    train(2)
    assert done == 2
    if size > 1:
        with pytest.raises(RuntimeError, match="1 rank has no batches left"):
            train(1 if rank == 0 else 3)
        assert done == 3


def test_other_orders_of_forward_and_backward(rank: int, size: int) -> None:
    """Runs 2 forwards and 1 backward, 1 forward and 2 backwards, gradients of inputs, and two models at once."""
    parallel, alone = pair()
    for number in range(3):
        inputs, targets = batch(number, size)
        mine, targets_here = part(inputs, rank), part(targets, rank)

        parallel.zero_grad()
        alone.zero_grad()
        (loss_of(parallel, mine, targets_here) + 2 * loss_of(parallel, -mine, targets_here)).backward()
        (loss_of(alone, inputs, targets) + 2 * loss_of(alone, -inputs, targets)).backward()
        assert_equal_gradients(parallel, alone)

        losses = [loss_of(parallel, mine, targets_here), loss_of(alone, inputs, targets)]
        for loss in losses:
            loss.backward(retain_graph=True)
            loss.backward()
        assert_equal_gradients(parallel, alone)

        for model, x in ((parallel, mine), (alone, inputs)):
            model.zero_grad()
            wanted = x.clone().requires_grad_()
            (slope,) = torch.autograd.grad(model(wanted).sum(), wanted, create_graph=True)
            (slope.square().sum() / len(x) + model(x).square().mean()).backward()
        assert_equal_gradients(parallel, alone)

    second, second_alone = DistributedDataParallel(nn.Linear(3, 6).double()), None
    second_alone = copy.deepcopy(second.module)
    for number in range(3):
        inputs, targets = batch(number, size)
        for model in (parallel, alone, second, second_alone):
            model.zero_grad()
        second(parallel(part(inputs, rank))).square().mean().backward()
        second_alone(alone(inputs)).square().mean().backward()
        assert_equal_gradients(parallel, alone)
        assert_equal_gradients(second, second_alone)


@pytest.mark.filterwarnings("ignore:.*create_graph")
@pytest.mark.parametrize("is_linear", [False, True])  # then the graph of the gradients has no output of the model
@pytest.mark.parametrize("adds_loss", [False, True])
def test_a_penalty_made_of_gradients(adds_loss: bool, is_linear: bool, rank: int, size: int) -> None:
    """The penalty of the gradients of all ranks, also in the first step."""
    parallel, alone = pair(find_unused_parameters=is_linear)
    optimizers = [sgd(parallel), torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)]
    for number in range(4):
        inputs, targets = batch(number, size)
        shares = [(parallel, part(inputs, rank), part(targets, rank)), (alone, inputs, targets)]
        for (model, mine, wanted), optimizer in zip(shares, optimizers, strict=True):

            def loss(model: Any = model, mine: Any = mine, wanted: Any = wanted) -> Any:
                return model(mine).mean() if is_linear else loss_of(model, mine, wanted)

            optimizer.zero_grad(set_to_none=number % 2 == 0)
            loss().backward(create_graph=True)
            penalty = sum(parameter.grad.square().sum() for parameter in model.parameters())
            (penalty + loss() if adds_loss else penalty).backward()
        assert_equal_gradients(parallel, alone)
        for optimizer in optimizers:
            optimizer.step()
    assert_equal_parameters(parallel, alone)
    assert_same_on_all_ranks(parallel)


def test_what_is_saved_refers_to_modules_that_stay() -> None:
    """A file of an earlier release loads only if pickle finds each class where it was."""
    model = nn.Linear(2, 2)
    saved = [
        DistributedDataParallel(model),
        hvd.SyncBatchNorm(3),
        hvd.DistributedOptimizer(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)),
        hvd.ZeroRedundancyOptimizer(nn.Linear(1, 1).parameters(), torch.optim.SGD, lr=0.1),
        hvd.elastic.ElasticSampler([1, 2]),
        hvd.Compression.fp16,
        hvd.Average,
    ]
    found = set()
    for each in saved:
        words: list[str] = []
        for operation, argument, _ in pickletools.genops(pickle.dumps(each)):
            if isinstance(argument, str):
                words.append(argument)
            if operation.name == "STACK_GLOBAL" and words[-2].startswith("perseus_like"):
                found.add(".".join(words[-2:]))
    assert found == {
        "perseus_like.operations.Op",
        "perseus_like.process_sets.global_process_set",
        "perseus_like.torch.compression.FP16Compressor",
        "perseus_like.torch.elastic.sampler.ElasticSampler",
        "perseus_like.torch.nn.parallel.distributed.DistributedDataParallel",
        "perseus_like.torch.optimizer._restore",
        "perseus_like.torch.sharded_optimizer._restore",
        "perseus_like.torch.sync_batch_norm.SyncBatchNorm",
    }
