"""Measures a whole training step: one process alone, all processes without communication, this library, DDP, Horovod.

    python -m benchmarks.training_step -np 2

Each rank computes on one thread. The steps without communication run in processes of their own, because allocators
behave differently beside other models. In "one process alone", the other ranks sleep. In "each by itself", all ranks
step at once, and share the bandwidth of the memory as in training together. The difference to it is the time of the
communication.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from . import ROOT, harness, peers
from .harness import Contender, World
from .record import Bar, Result, Row, publish, ratio

ALONE, EACH, OURS, DDP, HOROVOD = "one process alone", "each by itself", "ours", "DDP over gloo", "Horovod"
OUR_DDP, OVER_OURS = "our DDP", "DDP over perseus"
SMALL, BIG = "small MLP, 14 tensors, 1 MiB", "MLP of 12 × 1536², 113 MB"

Build = Callable[[], tuple[nn.Module, torch.Tensor]]


def small_model() -> tuple[nn.Module, torch.Tensor]:
    """Returns a model of seven layers with bias, which has 14 tensors, and its data."""
    return nn.Sequential(*(nn.Sequential(nn.Linear(192, 192), nn.ReLU()) for _ in range(7))), torch.randn(64, 192)


def big_model() -> tuple[nn.Module, torch.Tensor]:
    """Returns a model with little to compute for each parameter, and its data."""
    layers = (nn.Sequential(nn.Linear(1536, 1536, bias=False), nn.ReLU()) for _ in range(12))
    return nn.Sequential(*layers), torch.randn(4, 1536)


def tiny_model() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), torch.randn(2, 8)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, data: torch.Tensor) -> Callable[[], object]:
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
    """Steps a model as often as each number from the pipe says, and sends the seconds. Ends at the number 0."""
    torch.set_num_threads(1)
    model, data = build()
    run = step(model, sgd(model), data)
    while count := pipe.recv():
        begin = time.perf_counter()
        for _ in range(count):
            run()
        pipe.send(time.perf_counter() - begin)


@contextmanager
def process_by_itself(build: Build) -> Iterator[Callable[[int], float]]:
    """Yields a function that steps in another process and returns the seconds."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=serve_steps, args=(theirs, build), daemon=True)
    sys.path.append(str(ROOT))  # the child, which inherits the path, finds this module there
    process.start()
    sys.path.remove(str(ROOT))
    theirs.close()

    def run(count: int) -> float:
        mine.send(count)
        return float(mine.recv())

    try:
        yield run
    finally:
        mine.send(0)
        process.join()


def contenders(build: Build, by_itself: Callable[[int], float], other: Any) -> tuple[list[Contender], nn.Module]:
    """Returns the contenders, and the model that this library's optimizer trains."""
    import perseus_like.torch as hvd
    import perseus_like.torch.distributed  # noqa: F401  # torch before 2.5 does not load the backend by itself
    from perseus_like.torch.nn import parallel

    mine, data = build()
    made = [
        Contender(ALONE, by_itself, alone=True),
        Contender(EACH, by_itself),
        Contender.of(OURS, step(mine, wrapped(hvd, mine), data)),
    ]
    model, data = build()
    our_ddp = parallel.DistributedDataParallel(model)
    made.append(Contender.of(OUR_DDP, step(our_ddp, sgd(our_ddp), data)))
    for name, group in ((OVER_OURS, dist.new_group(backend="perseus")), (DDP, None)):
        model, data = build()
        ddp = nn.parallel.DistributedDataParallel(model, process_group=group)
        made.append(Contender.of(name, step(ddp, sgd(ddp), data)))
    if other is not None:
        model, data = build()
        made.append(Contender.of(HOROVOD, step(model, wrapped(other, model), data)))
    return made, mine


def check(world: World, model: nn.Module) -> None:
    """Raises AssertionError unless all ranks have the same parameters after training."""
    for name, parameter in model.named_parameters():
        if not world.same_everywhere(float(parameter.detach().double().sum())):
            raise AssertionError(f"{name} differs between ranks after training")


def bars(result: Result) -> list[Bar]:
    made = []
    if (row := result.row(SMALL)) is not None:
        mine, each = row.median(OURS), row.median(EACH)
        over = None if mine is None or each is None else (mine - each) * 1e3
        made.append(Bar(SMALL, "time over the local step", "≤", 0.25, over, "ms"))
    if (row := result.row(BIG)) is not None:
        made.append(Bar(BIG, "time / local step", "≤", 1, ratio(row.median(OURS), row.median(EACH))))
        each, gloo = row.median(EACH), row.median(DDP)
        for name, limit in ((OUR_DDP, 0.167), (OVER_OURS, 0.5)):
            if (mine := row.median(name)) is not None and each is not None and gloo is not None:
                over = (mine - each) / (gloo - each)
                made.append(Bar(BIG, f"{name}'s time over the local step / that of DDP over gloo", "≤", limit, over))
    return made if result.world.size == 2 and not result.quick else []


def on_every_rank(options: Any) -> None:
    torch.set_num_threads(1)
    world = World()
    torch.manual_seed(world.rank)
    peers.start_gloo(world)
    missing: dict[str, str] = {}
    other = None
    try:
        other = peers.start_horovod(world)
    except harness.Missing as reason:
        missing[HOROVOD] = str(reason)
    result = Result("training_step", "A training step", world, (OURS,), missing=missing, quick=options.quick)
    work: dict[str, Build] = {"tiny MLP": tiny_model} if options.quick else {SMALL: small_model, BIG: big_model}
    for name, build in work.items():
        with process_by_itself(build) as by_itself:
            made, mine = contenders(build, by_itself, other)
            result.rows.append(Row(name, harness.measure(world, made, harness.budget_of(options, untimed=2))))
        check(world, mine)
        del made, mine
    result.bars = bars(result)
    publish(result, options.output)
    world.barrier()
    peers.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    options = harness.parser("A training step, against DDP over gloo and Horovod.", seconds=15).parse_args(arguments)
    if harness.in_world():
        on_every_rank(options)
        return 0
    return harness.start_world("benchmarks.training_step", arguments, options)


if __name__ == "__main__":
    sys.exit(main())
