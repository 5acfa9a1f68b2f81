"""Tests of ranks that do not do the same: they train on, or all of them get an error that names the parameters."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import perseus_like.torch as hvd  # noqa: E402
from perseus_like.errors import DisagreementError  # noqa: E402
from perseus_like.torch.nn.parallel import DistributedDataParallel  # noqa: E402

from .training import assert_same_on_all_ranks, build, sgd, step  # noqa: E402

pytestmark = pytest.mark.usefixtures("two_ranks")


def _adasum(model: Any) -> Any:
    return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), op=hvd.Adasum)


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
