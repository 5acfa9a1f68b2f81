"""Checks that training on all ranks gives the parameters of one process that trains on the global batches."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import perseus_like.torch as hvd  # noqa: E402
from perseus_like.torch.nn.parallel import DistributedDataParallel  # noqa: E402

from .training import BATCH, MODELS, assert_equal_parameters, batch, build, loss_of, part  # noqa: E402

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    "Adam": {"lr": 0.02},
    "AdamW": {"lr": 0.02},
    "NAdam": {"lr": 0.02},
    "RAdam": {"lr": 0.02},
    "Adamax": {"lr": 0.02},
    "Adagrad": {"lr": 0.1},
    "Adadelta": {},
    "Adafactor": {"lr": 0.1},
    "ASGD": {"lr": 0.1},
    "RMSprop": {"lr": 0.01},
    "Rprop": {},
    "LBFGS": {"lr": 0.3, "max_iter": 4},
}


def steps(model: Any, optimizer: Any, batches: list[tuple[Any, Any]]) -> None:
    for inputs, targets in batches:

        def closure(inputs: Any = inputs, targets: Any = targets) -> Any:
            optimizer.zero_grad()
            loss = loss_of(model, inputs, targets)
            loss.backward()
            return loss

        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()


def test_complex_parameters(rank: int, size: int) -> None:
    torch.manual_seed(3)
    alone = torch.nn.Linear(4, 3, dtype=torch.complex128)
    together, parallel = deepcopy(alone), DistributedDataParallel(deepcopy(alone))
    optimizers = [torch.optim.SGD(model.parameters(), 0.1, momentum=0.9) for model in (alone, together, parallel)]
    optimizers[1] = hvd.DistributedOptimizer(optimizers[1], together.named_parameters())
    for _ in range(3):
        inputs = torch.randn(size * BATCH, 4, dtype=torch.complex128)
        mine = part(inputs, rank)
        for model, optimizer, values in zip((alone, together, parallel), optimizers, (inputs, mine, mine), strict=True):
            optimizer.zero_grad()
            (model(values).abs() ** 2).mean().backward()
            optimizer.step()
    assert_equal_parameters(together, alone)
    assert_equal_parameters(parallel.module, alone)


def compare(model_name: str, optimizer_name: str, rank: int, size: int, count: int = 4, **options: Any) -> Any:
    alone, together = build(model_name), build(model_name)
    cls, settings = getattr(torch.optim, optimizer_name), OPTIMIZERS[optimizer_name]
    batches = [batch(step, size) for step in range(count)]
    steps(alone, cls(alone.parameters(), **settings), batches)
    optimizer = hvd.DistributedOptimizer(cls(together.parameters(), **settings), together.named_parameters(), **options)
    assert isinstance(optimizer, cls)
    assert type(optimizer).__name__ == optimizer_name
    steps(together, optimizer, [(part(inputs, rank), part(targets, rank)) for inputs, targets in batches])
    assert_equal_parameters(together, alone)
    digests = hvd.allgather_object(b"".join(p.detach().numpy().tobytes() for p in together.parameters()))
    assert len(set(digests)) == 1
    return optimizer


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer(optimizer: str, rank: int, size: int) -> None:
    if not hasattr(torch.optim, optimizer):
        pytest.skip(f"this torch has no {optimizer}")
    compare("mlp", optimizer, rank, size)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_every_model(model: str, optimizer: str, rank: int, size: int) -> None:
    compare(model, optimizer, rank, size)


@pytest.mark.parametrize("options", [{"groups": 2}, {"groups": 100}, {"gradient_predivide_factor": 3.0}], ids=str)
def test_options_that_do_not_change_the_result(options: dict[str, Any], rank: int, size: int) -> None:
    compare("mlp", "SGD", rank, size, **options)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_channels_last(set_to_none: bool, rank: int, size: int) -> None:
    torch.manual_seed(1)
    alone = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Tanh(), torch.nn.Conv2d(8, 2, 3)).double()
    together = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Tanh(), torch.nn.Conv2d(8, 2, 3)).double()
    together.load_state_dict(alone.state_dict())
    together = together.to(memory_format=torch.channels_last)
    plain = torch.optim.Adam(alone.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(together.parameters(), lr=0.01))
    for step in range(4):
        images = torch.randn(2 * size, 3, 8, 8, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        plain.zero_grad(set_to_none)
        optimizer.zero_grad(set_to_none)
        alone(images).square().mean().backward()
        mine = images[2 * rank : 2 * rank + 2].to(memory_format=torch.channels_last)
        together(mine).square().mean().backward()
        plain.step()
        optimizer.step()
        for parameter in together.parameters():
            assert parameter.grad.stride() == parameter.stride()
    assert_equal_parameters(together, alone)


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing(reentrant: bool, rank: int, size: int) -> None:
    checkpoint_sequential: Any = torch.utils.checkpoint.checkpoint_sequential
    alone, together = build("mlp"), build("mlp")
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(together.parameters(), lr=0.1))
    for step in range(3):
        inputs, targets = batch(step, size)
        plain.zero_grad()
        loss_of(alone, inputs, targets).backward()
        plain.step()
        optimizer.zero_grad()
        mine = part(inputs, rank).requires_grad_()
        output = checkpoint_sequential(together, 2, mine, use_reentrant=reentrant)
        (output - part(targets, rank)).square().mean().backward()
        optimizer.step()
    assert_equal_parameters(together, alone)


def test_learning_rate_schedules(rank: int, size: int) -> None:
    alone, together, wrapped_late = build("mlp"), build("mlp"), build("mlp")
    plain = torch.optim.SGD(alone.parameters(), lr=0.2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(together.parameters(), lr=0.2))
    base = torch.optim.SGD(wrapped_late.parameters(), lr=0.2)
    late_schedule = torch.optim.lr_scheduler.StepLR(base, 1, 0.5)  # made before the optimizer is wrapped
    late = hvd.DistributedOptimizer(base)
    schedules = [torch.optim.lr_scheduler.StepLR(each, 1, 0.5) for each in (plain, optimizer)] + [late_schedule]
    for step in range(3):
        inputs, targets = batch(step, size)
        for model, each in ((alone, plain), (together, optimizer), (wrapped_late, late)):
            each.zero_grad()
            whole = model is alone
            loss_of(model, *((inputs, targets) if whole else (part(inputs, rank), part(targets, rank)))).backward()
            each.step()
        for schedule in schedules:
            schedule.step()
    assert optimizer.param_groups[0]["lr"] == late.param_groups[0]["lr"] == 0.025
    assert_equal_parameters(together, alone)
    assert_equal_parameters(wrapped_late, alone)


def test_state_survives_saving_and_loading(rank: int, size: int) -> None:
    alone, first = build("mlp"), build("mlp")
    batches = [batch(step, size) for step in range(6)]
    plain = torch.optim.Adam(alone.parameters(), lr=0.05)
    steps(alone, plain, batches)
    mine = [(part(inputs, rank), part(targets, rank)) for inputs, targets in batches]
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(first.parameters(), lr=0.05))
    steps(first, optimizer, mine[:3])
    second = build("mlp")
    second.load_state_dict(first.state_dict())
    resumed = torch.optim.Adam(second.parameters(), lr=1.0)
    resumed.load_state_dict(optimizer.state_dict())  # loaded before the optimizer is wrapped, which keeps the state
    resumed = hvd.DistributedOptimizer(resumed)
    steps(second, resumed, mine[3:5])
    resumed.load_state_dict(resumed.state_dict())
    steps(second, resumed, mine[5:])
    assert_equal_parameters(second, alone)
