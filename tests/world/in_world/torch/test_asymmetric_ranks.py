"""Tests of ranks that do not do the same: they train on, or all of them get an error that names the parameters."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import perseus_like.torch as hvd  # noqa: E402
from perseus_like.errors import DisagreementError  # noqa: E402
from perseus_like.torch.nn.parallel import DistributedDataParallel  # noqa: E402

from .training import (  # noqa: E402
    assert_same_on_all_ranks,
    batch,
    build,
    grad_scaler,
    loss_of,
    part,
    sgd,
    step,
)

pytestmark = pytest.mark.usefixtures("two_ranks")
NAMES = {"mlp": "'0.weight'", "recurrent": "'cells.weight"}


def _adasum(model: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Adasum)


@pytest.mark.parametrize("wrap", [sgd, _adasum], ids=["Average", "Adasum"])
def test_an_extra_optimizer(wrap: Any, rank: int, size: int) -> None:
    """One rank wraps optimizers that it does not use, of the same model and of another one."""
    models = [build("mlp"), build("recurrent")]
    extra = [wrap(build("mlp")), wrap(build("attention"))] if rank == 0 else []
    optimizers = [wrap(model) for model in models]
    for number in range(4):
        for model, optimizer in zip(models, optimizers, strict=True):
            step(model, optimizer, number, rank, size)
            assert_same_on_all_ranks(model)
    assert len(extra) == (2 if rank == 0 else 0)


def test_optimizers_that_are_wrapped_in_another_order(rank: int, size: int) -> None:
    models = [build("mlp"), build("recurrent")]
    optimizers: list[Any] = [None, None]
    for place in (0, 1) if rank == 0 else (1, 0):
        optimizers[place] = sgd(models[place])
    for number in range(4):
        for model, optimizer in zip(models, optimizers, strict=True):
            step(model, optimizer, number, rank, size)
            assert_same_on_all_ranks(model)


def test_models_in_another_order(rank: int, size: int) -> None:
    kinds = ["mlp", "recurrent"] if rank == 0 else ["recurrent", "mlp"]
    optimizers = [(model, sgd(model)) for model in map(build, kinds)]
    with pytest.raises(DisagreementError, match=r"position 0, rank 0 has '0\.weight'.*, rank 1 has 'cells\.weight"):
        step(*optimizers[0], 0, rank, size)
    with pytest.raises(DisagreementError, match=r"position 0, rank 0 has '0\.weight'.*, rank 1 has 'cells\.weight"):
        DistributedDataParallel(build(kinds[0]))


def test_a_copy_of_a_wrapped_model_on_one_rank(rank: int, size: int) -> None:
    """One rank copies the model, to keep it or to evaluate it, and trains on."""
    model = DistributedDataParallel(build("mlp"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(4):
        step(model, optimizer, number, rank, size)
        if rank == 0:
            kept = copy.deepcopy(model)
            with torch.no_grad():
                kept(torch.zeros(1, 6, dtype=torch.float64))
    assert_same_on_all_ranks(model)


@pytest.mark.parametrize("what", ["another pass", "no pass"])
def test_another_number_of_passes(what: str, rank: int, size: int) -> None:
    """One rank makes two passes before a step, or two steps after a pass, and pairs with a later pass of the others."""
    model = DistributedDataParallel(build("mlp"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(2):
        step(model, optimizer, number, rank, size)
    if what == "another pass":
        optimizer.zero_grad()
        _compute(model, 2, rank, size)
        if rank != size - 1:
            optimizer.step()
    elif rank == size - 1:
        optimizer.zero_grad()
        optimizer.step()
    counts = f"rank 0 made 1, rank {size - 1} made {0 if what == 'another pass' else 2}"
    words = rf"after one backward pass of DistributedDataParallel with '0\.weight' .* and 7 more: {counts}; call"
    with pytest.raises(DisagreementError, match=words):
        _compute(model, 3, rank, size)
    with torch.no_grad():
        for parameter in model.parameters():
            hvd.broadcast_(parameter, 0)
    for number in range(2):
        step(model, optimizer, number, rank, size)
        assert_same_on_all_ranks(model)


@pytest.mark.parametrize("steps", [0, 2], ids=["first step", "later step"])
@pytest.mark.parametrize("passes", [1, 2])
def test_a_pass_too_many_before_a_step(
    passes: int, steps: int, rank: int, size: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One rank makes more passes than backward_passes_per_step. All ranks get this error alone, and train on."""
    monkeypatch.setattr(
        "perseus_like.torch.gradients.gradient_watch.warn_once", logging.getLogger("perseus_like").warning
    )
    model = build("mlp")
    optimizer = sgd(model)
    for number in range(steps):
        step(model, optimizer, number, rank, size)
    optimizer.set_backward_passes_per_step(passes)
    optimizer.zero_grad()
    for _ in range(passes):
        _compute(model, 2, rank, size)
    if rank == size - 1:
        with pytest.raises(AssertionError, match="more than backward_passes_per_step times"):
            _compute(model, 2, rank, size)
    else:
        words = rf"rank {size - 1}: DistributedOptimizer, gradient of '.*': .* more than backward_passes_per_step times"
        with pytest.raises(RuntimeError, match=words):
            optimizer.step()
    assert "has changed gradients" not in caplog.text
    for number in range(2):
        optimizer.zero_grad()
        for _ in range(passes):
            _compute(model, number, rank, size)
        optimizer.step()
        assert_same_on_all_ranks(model)


def _assert_mixture(error: DisagreementError, *words: str) -> None:
    text = str(error)
    assert text.startswith("ranks step different models: ")
    for each in ("DistributedDataParallel", "'0.weight'", *words):
        assert each in text


@pytest.mark.parametrize("copier", [0, -1])
def test_a_copy_that_one_rank_trains(copier: int, rank: int, size: int) -> None:
    """All ranks get an error that names the model and the rank, and train on."""
    model = DistributedDataParallel(build("mlp"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(2):
        step(model, optimizer, number, rank, size)
    copier %= size
    trained = copy.deepcopy(model) if rank == copier else model
    with pytest.raises(DisagreementError) as caught:
        step(trained, torch.optim.SGD(trained.parameters(), lr=0.1), 2, rank, size)
    _assert_mixture(caught.value, f"rank {copier} makes the first step")
    for number in range(2, 4):
        step(model, optimizer, number, rank, size)
        assert_same_on_all_ranks(model)


def test_a_model_that_one_rank_wraps_alone(rank: int, size: int) -> None:
    model = DistributedDataParallel(build("mlp"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(2):
        step(model, optimizer, number, rank, size)

    def wrap_or_step() -> None:
        if rank == 0:
            DistributedDataParallel(build("mlp"))
        else:
            step(model, optimizer, 2, rank, size)

    with pytest.raises(DisagreementError) as caught:
        wrap_or_step()
    _assert_mixture(caught.value, "rank 1 makes a later step")
    step(model, optimizer, 2, rank, size)
    assert_same_on_all_ranks(model)


@pytest.mark.parametrize("wrap", [sgd, _adasum], ids=["Average", "Adasum"])
def test_steps_in_another_order(wrap: Any, rank: int, size: int) -> None:
    pairs = [(model, wrap(model)) for model in map(build, ["mlp", "recurrent"])]
    for number in range(2):
        for model, optimizer in pairs:
            step(model, optimizer, number, rank, size)
    with pytest.raises(DisagreementError, match=r"step different models: rank 0 makes a later step of .*'0\.weight'"):
        step(*pairs[min(rank, 1)], 2, rank, size)
    for model, optimizer in pairs:
        step(model, optimizer, 2, rank, size)
        assert_same_on_all_ranks(model)


def test_first_steps_of_adasum_in_another_order(rank: int, size: int) -> None:
    pairs = [(model, _adasum(model)) for model in map(build, ["mlp", "recurrent"])]
    with pytest.raises(DisagreementError, match=r"position 0, rank 0 has '0\.weight'.*, rank 1 has 'cells\.weight"):
        step(*pairs[min(rank, 1)], 0, rank, size)


def _sharded(name: str) -> tuple[Any, Any]:
    model = build(name, torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, hvd.DistributedOptimizer(optimizer, model.named_parameters(), shard=True)


def _compute(model: Any, number: int, rank: int, size: int) -> None:
    inputs, targets = batch(number, size, next(model.parameters()).dtype)
    loss_of(model, part(inputs, rank), part(targets, rank)).backward()


def _step(pair: tuple[Any, Any], number: int, rank: int, size: int) -> None:
    model, optimizer = pair
    optimizer.zero_grad()
    _compute(model, number, rank, size)
    optimizer.step()


def _ours(name: str) -> tuple[Any, Any]:
    model = DistributedDataParallel(build(name))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def _plain(name: str) -> tuple[Any, Any]:
    model = build(name)
    return model, sgd(model)


@pytest.mark.parametrize("make", [_plain, _ours], ids=["optimizer", "DDP"])
def test_first_steps_of_equal_models_in_another_order(make: Any, rank: int, size: int) -> None:
    """Nothing tells the two apart but the order in which they are made."""
    pairs = [make("mlp"), make("mlp")]
    first, second = pairs if rank == 0 else reversed(pairs)
    _step(first, 0, rank, size)
    with pytest.raises(DisagreementError, match=r"first steps of .* with .*0\.weight.* and of an equal one in another"):
        _step(second, 0, rank, size)


@pytest.mark.parametrize("make", [_plain, _ours], ids=["optimizer", "DDP"])
def test_first_steps_in_another_order_than_they_were_made(make: Any, rank: int, size: int) -> None:
    """All ranks do the same, and one of them has made another one before."""
    extra = _plain("mlp") if rank == 0 else None
    pairs = [make("mlp"), make("mlp"), make("mlp")]
    for number in range(2):
        for place in (1, 2, 0):
            _step(pairs[place], number, rank, size)
            assert_same_on_all_ranks(pairs[place][0])
    assert (extra is not None) == (rank == 0)


@pytest.mark.parametrize("kinds", [["mlp", "recurrent"], ["mlp", "mlp"]], ids=["other_shapes", "equal_shapes"])
@pytest.mark.parametrize("call", ["step", "clip", "scaler"])
def test_sharded_steps_in_another_order(call: str, kinds: list[str], rank: int, size: int) -> None:
    pairs = [_sharded(kind) for kind in kinds]
    scaler = grad_scaler(enabled=call == "scaler")

    def step_all(number: int) -> None:
        for model, optimizer in pairs:
            optimizer.zero_grad()
            _compute(model, number, rank, size)
            optimizer.step()
            assert_same_on_all_ranks(model)

    step_all(0)
    model, optimizer = pairs[min(rank, 1)]
    optimizer.zero_grad()
    _compute(model, 1, rank, size)
    scaler.scale(torch.ones(()))
    with pytest.raises(DisagreementError) as caught:
        optimizer.clip_grad_norm_(1.0) if call == "clip" else scaler.step(optimizer)
    text = str(caught.value)
    assert text.startswith("ranks step different models: rank 0 makes a later step of ZeroRedundancyOptimizer with")
    assert "'0.weight'" in text
    for each in kinds:
        assert NAMES[each] in text
    step_all(1)


def test_a_sharded_optimizer_that_one_rank_makes_alone(rank: int, size: int) -> None:
    model, optimizer = _sharded("mlp")
    with pytest.raises(DisagreementError, match="rank 0 makes the first step of ZeroRedundancyOptimizer with"):
        _sharded("mlp") if rank == 0 else optimizer.step()
    _compute(model, 0, rank, size)
    optimizer.step()
    assert_same_on_all_ranks(model)


def test_a_sharded_step_while_others_make_another(rank: int, size: int) -> None:
    pairs = [_sharded("mlp"), (recurrent := build("recurrent"), sgd(recurrent))]
    step(*pairs[1], 0, rank, size)
    with pytest.raises(DisagreementError, match=r"ranks step different models: rank 0 makes a later step of Zero"):
        pairs[0][1].step() if rank == 0 else step(*pairs[1], 1, rank, size)
    step(*pairs[1], 1, rank, size)
    _compute(pairs[0][0], 0, rank, size)
    pairs[0][1].step()
    for model, _ in pairs:
        assert_same_on_all_ranks(model)
