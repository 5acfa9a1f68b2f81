"""Tests of programs that touch gradients and parameters at any moment: as in one process, or with a warning."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import perseus_like.torch as hvd  # noqa: E402
from perseus_like.errors import DisagreementError  # noqa: E402
from perseus_like.torch.nn.parallel import DistributedDataParallel  # noqa: E402

from . import touches  # noqa: E402
from .training import (  # noqa: E402
    assert_equal_parameters,
    assert_same_on_all_ranks,
    batch,
    build,
    grad_scaler,
    loss_of,
    part,
    sgd,
    step,
)


def _optimizer(model: Any, two_passes: bool, uses_scaler: bool) -> tuple[Any, Any]:
    return model, sgd(model, backward_passes_per_step=2 if two_passes else 1)


def _data_parallel(model: Any, two_passes: bool, uses_scaler: bool) -> tuple[Any, Any]:
    return DistributedDataParallel(model), torch.optim.SGD(model.parameters(), lr=0.1)


def _gradients_are_the_programs(step: int, moment: str, action: str, everywhere: bool) -> bool:
    """Gradients of DistributedDataParallel are reduced when the pass ends; then each rank has its own."""
    return not everywhere and moment == "between backward and step"


def _sharded(model: Any, two_passes: bool, uses_scaler: bool) -> tuple[Any, Any]:
    return model, hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), shard=True)


@pytest.fixture(params=["after backward", "during backward"])
def reduced(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the ranks reduce gradients as if they had one core each, and as if they had many."""
    cores = 1 if request.param == "after backward" else 1000
    monkeypatch.setattr("perseus_like.torch.gradients.usable_cores", lambda: cores)


@pytest.mark.usefixtures("reduced")
def test_touched_with_an_optimizer(rank: int, size: int) -> None:
    assert touches.failures(_optimizer, rank, size, hvd.allgather_object) == []


def test_touched_with_data_parallel(rank: int, size: int) -> None:
    may_be_apart = _gradients_are_the_programs
    assert touches.failures(_data_parallel, rank, size, hvd.allgather_object, may_be_apart) == []


def test_reduced_gradients_that_one_rank_changes_can_be_an_error(
    rank: int, size: int, two_ranks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERSEUS_TOUCHED_GRADIENTS", "error")
    model = DistributedDataParallel(build("mlp"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = batch(3, size)
    _loss(model, inputs, targets, rank).backward()
    if rank == size - 1:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    optimizer.step()
    with pytest.raises(RuntimeError, match=r"DistributedDataParallel: .* other ranks have not") as error:
        _loss(model, inputs, targets, rank).backward()
    assert ("'0.weight'" in str(error.value)) == (rank == size - 1)
    _loss(model, inputs, targets, rank).backward()
    optimizer.step()


@pytest.mark.parametrize("touched", [0, 1])
def test_gradients_that_one_rank_changes_between_two_optimizers(
    touched: int, rank: int, size: int, two_ranks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a change before the step of the optimizer that uses the gradients counts."""
    monkeypatch.setenv("PERSEUS_TOUCHED_GRADIENTS", "error")
    model: Any = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)))
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in model.module]
    inputs = torch.ones(2, 4)
    model(inputs).sum().backward()
    optimizers[0].step()
    if rank == size - 1:
        torch.nn.utils.clip_grad_norm_(model.module[touched].parameters(), 1e-3)
    optimizers[1].step()
    if touched == 0:
        model(inputs).sum().backward()
        return
    with pytest.raises(RuntimeError, match=r"DistributedDataParallel: .* other ranks have not") as error:
        model(inputs).sum().backward()
    assert ("'1.weight'" in str(error.value)) == (rank == size - 1)
    model(inputs).sum().backward()


def _train_with_join(rank: int, size: int) -> None:
    """Ranks have unlike numbers of batches. The last rank's last batches have large gradients, which it clips."""
    model: Any = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for _ in range(2):
        with model.join():
            for number in range(2 + rank):
                optimizer.zero_grad()
                model(torch.full((2, 4), 100.0 if number == size else 0.01)).sum().backward()
                if model.module.weight.grad.norm() > 10.0:
                    model.module.weight.grad.mul_(0.1)
                optimizer.step()


def _train_with_closures(rank: int, size: int) -> None:
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=3)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (model(torch.full((2, 4), float(rank))) - 1).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
        if rank == 0:
            optimizer.zero_grad()


def _train_with_two_optimizers(rank: int, size: int) -> None:
    """The ranks clear gradients at different moments after the step that uses them, and clip alike before it."""
    model: Any = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)))
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.01, momentum=0.9) for layer in model.module]
    first, second = optimizers if rank != 1 else reversed(optimizers)
    for number in range(6):
        model(torch.full((2, 4), float(rank))).sum().backward()
        first.step()
        if number % 2 == rank % 2:
            first.zero_grad(set_to_none=number < 3)
        if number == 2:
            model.zero_grad()
        if number == 4:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        second.step()
        model.zero_grad()


def _train_beside_a_thread(rank: int, size: int) -> None:
    """The thread makes as many models on all ranks, because owners in threads are told apart by their order."""
    models: list[Any] = []

    def make_models() -> None:
        for _ in range(300):
            models[:] = [*models[-9:], DistributedDataParallel(torch.nn.Linear(2, 2), init_sync=False)]

    optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    thread = threading.Thread(target=make_models)
    thread.start()
    while thread.is_alive():
        optimizer.step()
    thread.join()


_RIGHT_PROGRAMS = [_train_with_join, _train_with_closures, _train_with_two_optimizers, _train_beside_a_thread]


@pytest.mark.parametrize("train", _RIGHT_PROGRAMS)
def test_right_programs_are_not_warned(train: Any, rank: int, size: int) -> None:
    with touches.warnings_of_the_library() as texts:
        train(rank, size)
    assert texts == []


def test_one_optimizer_of_two_models(rank: int, size: int, two_ranks: None) -> None:
    models: list[Any] = [DistributedDataParallel(torch.nn.Linear(4, 4)) for _ in range(2)]
    first, second = models
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    with touches.warnings_of_the_library() as texts:
        for number in range(2):
            optimizer.zero_grad()
            second(first(torch.ones(2, 4))).sum().backward()
            if rank == 0 and number == 0:
                second.module.weight.grad.mul_(0.5)
            optimizer.step()
    assert len(texts) == 1
    assert ("'weight'" in texts[0]) == (rank == 0)


def test_touched_with_a_sharded_optimizer(rank: int, size: int) -> None:
    may_fail = ("to(dtype) and back", "channels_last").__contains__  # these take parameters out of shared memory
    assert touches.failures(_sharded, rank, size, hvd.allgather_object, may_fail=may_fail) == []


@pytest.mark.usefixtures("reduced", "two_ranks")
def test_touched_gradients_can_be_an_error(rank: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank changes gradients. All ranks raise an error that names the rank, the parameters and the remedy."""
    monkeypatch.setenv("PERSEUS_TOUCHED_GRADIENTS", "error")
    model = build("mlp")
    optimizer = sgd(model)
    for number in range(3):
        step(model, optimizer, number, rank, size)
    inputs, targets = batch(3, size)
    optimizer.zero_grad()
    _loss(model, inputs, targets, rank).backward()
    if rank == size - 1:
        torch.nn.utils.clip_grad_norm_(model[0].parameters(), 1e-3)
    with pytest.raises(RuntimeError, match=rf"rank {size - 1}: DistributedOptimizer: .*'0.weight'.*synchronize\(\)"):
        optimizer.step()
    monkeypatch.setenv("PERSEUS_TOUCHED_GRADIENTS", "warn")
    step(model, optimizer, 4, rank, size)
    assert_same_on_all_ranks(model)


@pytest.mark.usefixtures("two_ranks")
def test_touched_gradients_of_a_sharded_optimizer_can_be_an_error(
    rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank clips its gradients. All ranks raise an error with the remedy."""
    monkeypatch.setenv("PERSEUS_TOUCHED_GRADIENTS", "error")
    model = build("mlp", torch.float32)
    optimizer = sgd(model, shard=True)
    for number in range(3):
        inputs, targets = batch(number, size, torch.float32)
        optimizer.zero_grad()
        _loss(model, inputs, targets, rank).backward()
        if number != 1:
            optimizer.step()
            continue
        if rank == size - 1:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        whose = "the program" if rank == size - 1 else f"rank {size - 1}"
        words = rf"ZeroRedundancyOptimizer: {whose} has changed gradients .* Clip by optimizer\.clip_grad_norm_"
        with pytest.raises(RuntimeError, match=words):
            optimizer.step()
    assert_same_on_all_ranks(model)


@pytest.mark.usefixtures("two_ranks")
def test_ranks_that_all_touch_gradients_warn_once(rank: int, size: int, caplog: pytest.LogCaptureFixture) -> None:
    model = build("mlp")
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), [(f"all.{name}", each) for name, each in model.named_parameters()]
    )
    for number in range(3):
        inputs, targets = batch(number, size)
        optimizer.zero_grad()
        _loss(model, inputs, targets, rank).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()
    (warning,) = [each.getMessage() for each in caplog.records if "has changed gradients" in each.getMessage()]
    assert "the program has changed" in warning


@pytest.mark.usefixtures("reduced")
@pytest.mark.parametrize("infinite", [False, True])
def test_unscale_and_clip_by_the_recipe_of_pytorch(infinite: bool, rank: int, size: int) -> None:
    """The weights and scales of one process, also if one rank has an infinite gradient in a step."""
    alone, together = build("mlp"), build("mlp")
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    optimizer = sgd(together)
    scalers = [grad_scaler(init_scale=1024.0, growth_interval=2) for _ in range(2)]
    for number in range(5):
        inputs, targets = batch(number, size)
        bad = float("inf") if infinite and number == 2 else 1.0
        for model, by, scaler, r in ((alone, plain, scalers[0], -1), (together, optimizer, scalers[1], rank)):
            by.zero_grad()
            factor = bad if r in (-1, size - 1) else 1.0
            loss = _loss(model, inputs, targets, r) * factor
            scaler.scale(loss).backward()
            scaler.unscale_(by)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            scaler.step(by)
            scaler.update()
        assert_equal_parameters(together, alone)
        assert scalers[0].get_scale() == scalers[1].get_scale()


@pytest.mark.usefixtures("reduced", "two_ranks")
@pytest.mark.parametrize("set_to_none", [False, True])
@pytest.mark.parametrize("unscales", [False, True])
def test_a_scaler_and_a_rank_without_a_batch(set_to_none: bool, unscales: bool, rank: int, size: int) -> None:
    """One rank makes no backward pass in two steps, in the first of which another rank finds infinities."""
    model = build("mlp")
    optimizer = sgd(model)
    scaler = grad_scaler(init_scale=1024.0)
    for number in range(6):
        inputs, targets = batch(number, size)
        optimizer.zero_grad(set_to_none)
        if rank != size - 1 or number not in (2, 3):
            factor = float("inf") if rank == 0 and number == 2 else 1.0
            scaler.scale(_loss(model, inputs, targets, rank) * factor).backward()
        if unscales:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        assert all(scale == scaler.get_scale() for scale in hvd.allgather_object(scaler.get_scale()))
        assert scaler.get_scale() == (1024.0 if number < 2 else 512.0)
        assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())
        assert_same_on_all_ranks(model)


@pytest.mark.usefixtures("reduced", "two_ranks")
@pytest.mark.parametrize("change", [False, True])
def test_one_rank_changes_what_it_trains(change: bool, rank: int, size: int) -> None:
    """Frozen or unfrozen on one rank after some steps: every rank steps with the mean, with zeros of the others."""
    model = build("mlp")
    weight = model[3].weight
    weight.requires_grad_(not change)
    optimizer = sgd(model)
    for number in range(2):
        step(model, optimizer, number, rank, size)
    for number in range(2, 5):
        if rank == size - 1:
            weight.requires_grad_(change)
        trains = (rank == size - 1) == change
        inputs, targets = batch(number, size)
        optimizer.zero_grad()
        loss = _loss(model, inputs, targets, rank)
        mine = torch.autograd.grad(loss, weight, retain_graph=True)[0] if trains else torch.zeros_like(weight)
        loss.backward()
        before = weight.detach().clone()
        optimizer.step()
        mean = hvd.allreduce(mine)
        torch.testing.assert_close(weight.detach(), before - optimizer.param_groups[0]["lr"] * mean)
        assert_same_on_all_ranks(model)


def test_layers_that_each_rank_freezes_by_chance(rank: int, size: int) -> None:
    model = build("mlp")
    optimizer = sgd(model)
    generator = torch.Generator().manual_seed(rank)
    for number in range(8):
        for parameter in model.parameters():
            parameter.requires_grad_(bool(torch.rand(1, generator=generator) < 0.7) or number < 2)
        model[0].weight.requires_grad_(True)
        step(model, optimizer, number, rank, size)
        assert_same_on_all_ranks(model)


def test_another_dtype_from_some_step_on(rank: int, size: int) -> None:
    alone, together = build("mlp", torch.float32), build("mlp", torch.float32)
    plain, optimizer = torch.optim.SGD(alone.parameters(), lr=0.1), sgd(together)
    for number in range(5):
        dtype = torch.float32 if number < 3 else torch.float64
        inputs, targets = batch(number, size, dtype)
        for model, by, r in ((alone, plain, -1), (together, optimizer, rank)):
            model.to(dtype)
            by.zero_grad()
            _loss(model, inputs, targets, r).backward()
            by.step()
        assert_equal_parameters(together, alone, 1e-5)
    assert together[0].weight.grad.dtype is torch.float64


@pytest.mark.usefixtures("two_ranks")
def test_another_dtype_on_one_rank(rank: int, size: int) -> None:
    """The gradients of the step are those of all ranks. Then all ranks say what is different."""
    model = build("mlp", torch.float32)
    optimizer = sgd(model)
    for number in range(4):
        dtype = torch.float64 if rank == size - 1 and number == 3 else torch.float32
        inputs, targets = batch(number, size, dtype)
        model.to(dtype)
        optimizer.zero_grad()
        _loss(model, inputs, targets, rank).backward()
        optimizer.step()
    optimizer.zero_grad()
    _loss(model, inputs, targets, rank).backward()
    with pytest.raises(DisagreementError, match=r"'0\.weight' float64"):
        optimizer.step()


@pytest.mark.usefixtures("reduced")
def test_a_penalty_made_of_gradients(rank: int, size: int) -> None:
    alone, together = build("mlp"), build("mlp")
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    optimizer = sgd(together, backward_passes_per_step=2)
    for number in range(4):
        inputs, targets = batch(number, size)
        plain.zero_grad()
        for r in range(size):  # the penalty of each rank's own gradients
            own = copy.deepcopy(alone)
            _with_penalty(own, inputs, targets, r)
            for parameter, source in zip(alone.parameters(), own.parameters(), strict=True):
                before = 0 if parameter.grad is None else parameter.grad
                parameter.grad = before + source.grad.detach() / size
        plain.step()
        optimizer.zero_grad()
        _with_penalty(together, inputs, targets, rank)
        optimizer.step()
        assert_equal_parameters(together, alone)


def _with_penalty(model: Any, inputs: Any, targets: Any, rank: int) -> None:
    _loss(model, inputs, targets, rank).backward(create_graph=True)
    sum(parameter.grad.square().sum() for parameter in model.parameters()).backward()


def _loss(model: Any, inputs: Any, targets: Any, rank: int) -> Any:
    """Returns the loss of one rank's part of a batch, or of all of it for the rank -1."""
    return loss_of(model, inputs, targets) if rank < 0 else loss_of(model, part(inputs, rank), part(targets, rank))
