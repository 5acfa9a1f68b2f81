"""Mistakes in the use of the sharded optimizer raise errors that say what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import perseus_like.torch as hvd

from ..training import sgd

Make = Callable[[Any], Any]


def model_of() -> torch.nn.ModuleDict:
    torch.manual_seed(0)
    return torch.nn.ModuleDict({"middle": torch.nn.Linear(4, 4)})


class Plain(torch.optim.Optimizer):
    """Steps of optimizers that cannot be sharded."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(self.update_of(parameter), alpha=group["lr"])

    def update_of(self, parameter: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class Lars(Plain):
    def update_of(self, parameter: torch.Tensor) -> torch.Tensor:
        assert parameter.grad is not None
        ratio: torch.Tensor = parameter.norm() / (parameter.grad.norm() + 1e-6)
        return parameter.grad * ratio


class Langevin(Plain):
    def update_of(self, parameter: torch.Tensor) -> torch.Tensor:
        assert parameter.grad is not None
        return parameter.grad + torch.randn_like(parameter)


class Halves(Plain):
    def update_of(self, parameter: torch.Tensor) -> torch.Tensor:
        assert parameter.grad is not None
        momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter, dtype=torch.float16))
        momentum.add_(parameter.grad)
        return parameter.grad


class Broken(Plain):
    def update_of(self, parameter: torch.Tensor) -> torch.Tensor:
        return parameter / (1 // 0)


REFUSED: dict[str, tuple[Make, str]] = {
    "LBFGS": (lambda p: hvd.ZeroRedundancyOptimizer(p, torch.optim.LBFGS, lr=1), "needs all gradients at once"),
    "norms": (lambda p: hvd.ZeroRedundancyOptimizer(p, Lars), "its update of an element depends on other elements"),
    "chance": (lambda p: hvd.ZeroRedundancyOptimizer(p, Langevin), "on other elements or on chance"),
    "halves": (
        lambda p: hvd.ZeroRedundancyOptimizer(p, Halves),
        "'momentum' is not a float32 tensor",
    ),
    "broken": (lambda p: hvd.ZeroRedundancyOptimizer(p, Broken), "failed with ZeroDivisionError"),
    "capturable": (lambda p: hvd.ZeroRedundancyOptimizer(p, torch.optim.NAdam, capturable=True), "omit capturable"),
    "double": (
        lambda _: hvd.ZeroRedundancyOptimizer([torch.nn.Parameter(torch.ones(2).double())], torch.optim.SGD, lr=1),
        "only float32 and bfloat16",
    ),
    "gaps": (
        lambda _: hvd.ZeroRedundancyOptimizer([torch.nn.Parameter(torch.ones(8)[::2])], torch.optim.SGD, lr=1),
        "has gaps between its elements",
    ),
    "compression": (
        lambda p: hvd.DistributedOptimizer(  # type: ignore[call-overload]
            torch.optim.SGD(p, lr=1), compression=hvd.Compression.fp16, shard=True
        ),
        "does not support compression",
    ),
    "device": (
        lambda _: hvd.ZeroRedundancyOptimizer(
            [torch.nn.Parameter(torch.ones(2, device="meta"))], torch.optim.SGD, lr=1
        ),
        "only dense CPU parameters",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_sharded_is_refused(what: str) -> None:
    make, text = REFUSED[what]
    with pytest.raises(RuntimeError, match=text):
        make(list(model_of().parameters()))


@pytest.mark.usefixtures("two_ranks")
def test_ranks_with_different_parameters() -> None:
    parameters = [torch.nn.Parameter(torch.ones(2 + hvd.rank()))]
    with pytest.raises(hvd.HorovodInternalError, match="ranks optimize different parameters: at position 0, rank 0"):
        hvd.ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=0.1)


def test_a_parameter_that_leaves_the_memory() -> None:
    model = model_of()
    optimizer = sgd(model, shard=True)
    hvd.barrier()
    weight = model.get_parameter("middle.weight")
    weight.data = weight.data.clone()
    with pytest.raises(RuntimeError, match=r"'middle\.weight' has left the memory"):
        optimizer.step()
    hvd.barrier()
    hvd.unshare_parameters(model)
    optimizer.step()  # shares them again
    everybody = hvd.allgather_object(model.state_dict()["middle.weight"].tolist())
    assert all(each == everybody[0] for each in everybody)


@pytest.mark.usefixtures("two_ranks")
def test_a_parameter_that_all_ranks_multiply(caplog: pytest.LogCaptureFixture) -> None:
    """The ranks share it, so that it is multiplied once for each rank. One rank may write it."""
    model = torch.nn.ModuleDict({"multiplied": torch.nn.Linear(4, 4)})
    optimizer = sgd(model, shard=True)
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})  # on all ranks
    optimizer.step()
    weight = model.get_parameter("multiplied.weight")
    for writers, warns in (([0], False), (range(hvd.size()), True)):
        hvd.barrier()
        if hvd.rank() in writers:
            with torch.no_grad():
                weight.mul_(0.5)
        optimizer.step()
        assert ("this rank 'multiplied.weight'" in caplog.text) == warns
