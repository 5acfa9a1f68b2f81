"""Measures training with the sharded optimizer, against other optimizers and against one process by itself.

python -m benchmarks.sharded_optimizer -np 2
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from . import harness
from .harness import Contender, World, measure
from .record import Bar, Result, Row, publish, ratio

ALONE = "one process alone"
SHARDED = "ZeroRedundancyOptimizer"
DISTRIBUTED, BY_SHARD = "DistributedOptimizer", "DistributedOptimizer, shard=True"
DDP, DDP_ZERO = "DDP over gloo", "DDP and torch's ZeroRedundancyOptimizer over gloo"
PLAIN, QUICK = "plain", "quick"  # the first and the last argument of the processes that `PlainProcess` starts
LAYERS, WIDTH, BATCH = 12, 1536, 4  # as in benchmarks.training_step


class Training:
    """Trains a perceptron by Adam. `seconds_in_step` has the time of the steps of the optimizer alone."""

    def __init__(self, quick: bool, optimizer_of: Callable[[torch.nn.Module], Any], ddp: bool = False) -> None:
        width, layers = (64, 2) if quick else (WIDTH, LAYERS)
        torch.manual_seed(0)
        modules = [each for _ in range(layers) for each in (torch.nn.Linear(width, width, bias=False), torch.nn.ReLU())]
        model = torch.nn.Sequential(*modules)
        self._model = DistributedDataParallel(model) if ddp else model
        self._batch = torch.randn(BATCH, width)
        self._optimizer = optimizer_of(self._model)

    def step(self) -> float:
        """Makes one step of training. Returns the seconds in the step of the optimizer."""
        self._optimizer.zero_grad()
        self._model(self._batch).square().mean().backward()
        begin = time.perf_counter()
        self._optimizer.step()
        return time.perf_counter() - begin

    def steps_only(self, count: int) -> float:
        return sum(self.step() for _ in range(count))


def adam(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)


def adam_by_shards(model: torch.nn.Module) -> torch.optim.Optimizer:
    return ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-4, fused=True)


class PlainProcess:
    """A process of torch beside this rank, which trains when it is asked to.

    It does not load this library, because that changes how memory is allocated. Those of all ranks are joined by gloo.
    """

    def __init__(self, world: World, quick: bool) -> None:
        place = [str(world.folder / "gloo"), str(world.rank), str(world.size)]
        command = [sys.executable, "-m", "benchmarks.sharded_optimizer", PLAIN, *place, *([QUICK] if quick else [])]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PERSEUS_")}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

    def contender(self, name: str) -> Contender:
        def run(count: int) -> float:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            print(count, name, file=self._process.stdin, flush=True)
            return float(self._process.stdout.readline())

        return Contender(name, run, alone=name == ALONE)

    def end(self) -> None:
        self._process.communicate()  # the end of its input ends it

    @staticmethod
    def main(store: str, rank: str, size: str, *quick: str) -> None:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(size))
        make: dict[str, Callable[[], Training]] = {
            ALONE: lambda: Training(bool(quick), adam),
            DDP: lambda: Training(bool(quick), adam, ddp=True),
            DDP_ZERO: lambda: Training(bool(quick), adam_by_shards, ddp=True),
        }
        trainings: dict[str, Training] = {}
        for line in sys.stdin:
            count, name = line.rstrip().split(" ", 1)
            if name not in trainings:
                trainings[name] = make[name]()
            begin = time.perf_counter()
            trainings[name].steps_only(int(count))
            print(time.perf_counter() - begin, flush=True)
        dist.destroy_process_group()


def contenders(
    plain: PlainProcess, quick: bool, ours: Sequence[str], theirs: Sequence[str]
) -> tuple[list[Contender], list[Contender]]:
    """Returns the contenders of a step of training, and those of ours for a step of the optimizer."""
    import perseus_like.torch as hvd

    makers: dict[str, Callable[[torch.nn.Module], Any]] = {
        SHARDED: lambda model: hvd.ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-4),
        DISTRIBUTED: lambda model: hvd.DistributedOptimizer(adam(model)),
        BY_SHARD: lambda model: hvd.DistributedOptimizer(adam(model), model.named_parameters(), shard=True),
    }
    trainings = {name: Training(quick, makers[name]) for name in ours}
    whole = [Contender.of(name, each.step) for name, each in trainings.items()]
    whole += [plain.contender(name) for name in theirs]
    return whole, [Contender(name, each.steps_only) for name, each in trainings.items()]


def on_every_rank(options: Any) -> None:
    torch.set_num_threads(1)
    world = World()
    plain = PlainProcess(world, options.quick)
    result = Result("sharded_optimizer", "Sharded optimizer", world, (SHARDED,), quick=options.quick)
    budget = harness.budget_of(options, untimed=1)
    whole, updates = contenders(plain, options.quick, (SHARDED, DISTRIBUTED), (ALONE, DDP, DDP_ZERO))
    rows = [Row("step of training", measure(world, whole, budget)), Row("step()", measure(world, updates, budget))]
    result.rows = rows
    if not options.quick and world.size == 2:
        against_alone = ratio(rows[0].median(SHARDED), rows[0].median(ALONE))
        result.bars.append(Bar(rows[0].work, "time / one process alone", "≤", 0.97, against_alone))
        for peer, limit in ((DDP, 2.3), (DDP_ZERO, 3.0)):
            faster = ratio(rows[0].median(peer), rows[0].median(SHARDED))
            result.bars.append(Bar(rows[0].work, f"faster than {peer}", "≥", limit, faster))
    if not options.quick and world.size == 4:
        against_ours = ratio(rows[1].median(SHARDED), rows[1].median(DISTRIBUTED))
        result.bars.append(Bar(rows[1].work, "time / DistributedOptimizer", "≤", 0.35, against_ours))
    publish(result, options.output)
    plain.end()
    world.barrier()


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments and arguments[0] == PLAIN:
        PlainProcess.main(*arguments[1:])
        return 0
    options = harness.parser("Steps of training with a sharded optimizer.", seconds=20).parse_args(arguments)
    if harness.in_world():
        on_every_rank(options)
        return 0
    return harness.start_world("benchmarks.sharded_optimizer", arguments, options)


if __name__ == "__main__":
    sys.exit(main())
