"""Measures a whole training step: one process alone, all processes without communication, this library, DDP, Horovod.

    python -m benchmarks.training_step -np 2

Each rank computes on one thread. The steps without communication run in processes of their own, because allocators
behave differently beside other models. In "one process alone", the other ranks sleep. In "each by itself", all ranks
step at once, and share the bandwidth of the memory as in training together. The difference to it is the time of the
communication.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from . import harness, peers
from .harness import Call, Contender, Result, World, ratio, scaled

ALONE, EACH, OURS, DDP, HOROVOD = "one process alone", "each by itself", "ours", "DDP over gloo", "Horovod"
OUR_DDP, OVER_OURS = "our DDP", "DDP over perseus"
SMALL, BIG = "small MLP, 14 tensors, 1 MiB", "MLP of 12 × 1536², 113 MB"

Build = Callable[[], tuple[nn.Module, torch.Tensor]]


def perceptron(layers: int, width: int, rows: int, bias: bool) -> tuple[nn.Module, torch.Tensor]:
    """Returns a model and its data."""
    parts = (nn.Sequential(nn.Linear(width, width, bias=bias), nn.ReLU()) for _ in range(layers))
    return nn.Sequential(*parts), torch.randn(rows, width)


small_model = functools.partial(perceptron, 7, 192, rows=64, bias=True)
big_model = functools.partial(perceptron, 12, 1536, rows=4, bias=False)  # little to compute for each parameter
tiny_model = functools.partial(perceptron, 2, 8, rows=2, bias=True)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, data: torch.Tensor) -> Call:
    def run() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(model(data).square().mean())
        optimizer.step()

    return run


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3)


def wrapped(module: Any, model: nn.Module) -> Any:
    """Returns the DistributedOptimizer of this library or of Horovod. All ranks get the parameters of rank 0."""
    module.broadcast_parameters(model.state_dict(), root_rank=0)
    return module.DistributedOptimizer(sgd(model), named_parameters=model.named_parameters())


def serve_steps(pipe: Connection, build: Build) -> None:
    """Steps a model as often as each number from the pipe says, and sends the seconds."""
    torch.set_num_threads(1)
    model, data = build()
    contender = Contender.of(EACH, step(model, sgd(model), data))
    while count := pipe.recv():
        pipe.send(contender.seconds(count))


def contenders(build: Build, by_itself: Callable[[int], float], others: dict[str, Any]) -> tuple[list[Contender], Any]:
    """Returns the contenders, and the model that this library's optimizer trains."""
    import perseus_like.torch as hvd
    import perseus_like.torch.distributed  # noqa: F401  # torch before 2.5 does not load the backend by itself
    from perseus_like.torch.nn import parallel

    made = [Contender(ALONE, by_itself, alone=True), Contender(EACH, by_itself)]
    mine, data = build()
    made.append(Contender.of(OURS, step(mine, wrapped(hvd, mine), data)))
    of_perseus = dist.new_group(backend="perseus")
    wraps: dict[str, Callable[[nn.Module], nn.Module]] = {
        OUR_DDP: parallel.DistributedDataParallel,
        OVER_OURS: lambda model: nn.parallel.DistributedDataParallel(model, process_group=of_perseus),
        DDP: nn.parallel.DistributedDataParallel,
    }
    for name, wrap in wraps.items():
        model, data = build()
        ddp = wrap(model)
        made.append(Contender.of(name, step(ddp, sgd(ddp), data)))
    if HOROVOD in others:
        model, data = build()
        made.append(Contender.of(HOROVOD, step(model, wrapped(others[HOROVOD], model), data)))
    return made, mine


def check(world: World, model: nn.Module) -> None:
    """Raises AssertionError unless all ranks have the same parameters after training."""
    for name, parameter in model.named_parameters():
        if len(set(world.by_rank(float(parameter.detach().double().sum())))) > 1:
            raise AssertionError(f"{name} differs between ranks after training")


def add_bars(result: Result) -> None:
    if (mine := result.best(SMALL, OURS)) is not None and (each := result.best(SMALL, EACH)) is not None:
        result.bar(SMALL, "time over the local step", "≤", 0.25, scaled(mine - each, 1e3), "ms")
    each, gloo = result.best(BIG, EACH), result.best(BIG, DDP)
    if each is None or gloo is None:
        return
    result.bar(BIG, "time / local step", "≤", 1, ratio(result.best(BIG, OURS), each))
    for name, limit in ((OUR_DDP, 0.167), (OVER_OURS, 0.5)):
        over = ((result.best(BIG, name) or 0) - each) / (gloo - each)
        result.bar(BIG, f"{name}'s time over the local step / that of DDP over gloo", "≤", limit, over)


def on_every_rank(options: Any) -> None:
    result = Result("training_step", "A training step", World(), options, (OURS,))
    torch.manual_seed(result.world.rank)
    others = peers.start(result, {"gloo": peers.start_gloo, HOROVOD: peers.start_horovod})
    work: dict[str, Build] = {"tiny MLP": tiny_model} if options.quick else {SMALL: small_model, BIG: big_model}
    for name, build in work.items():
        with harness.process_that(serve_steps, build) as by_itself:
            made, mine = contenders(build, by_itself, others)
            result.measure(name, made, untimed=2)
        check(result.world, mine)
        del made, mine
    add_bars(result)
    result.publish()


if __name__ == "__main__":
    harness.main(on_every_rank, seconds=15)
