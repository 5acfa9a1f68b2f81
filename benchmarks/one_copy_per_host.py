"""Measures what ranks of a host have once: the sharded optimizer, its memory, data; and the optimizers' kernels.

    python -m benchmarks.one_copy_per_host -np 2                      # steps of training with Adam
    python -m benchmarks.one_copy_per_host --counts 1 2 4 8 --picture docs/one-copy-per-host.svg
    python -m benchmarks.one_copy_per_host --data -np 4               # hvd.shared
    python -m benchmarks.one_copy_per_host --kernels -np 1            # fused optimizers on one core

With `--counts`, each of these numbers of ranks is a job. The memory is that of all ranks, beyond what they had before
the model. The time is that of `step()` on the slowest rank, with the wait for the reduction. With `--data`, the memory
is that of all ranks, and the time is that until all have the data.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from . import harness, report
from .harness import MIB, Contender, Result, World, ratio
from .idle import memory_bytes
from .training_step import perceptron

ALONE = "one process alone"
SHARDED, DISTRIBUTED, BY_SHARD = "ZeroRedundancyOptimizer", "DistributedOptimizer", "DistributedOptimizer, shard=True"
COMPARED = (DISTRIBUTED, SHARDED)
DDP, DDP_ZERO = "DDP over gloo", "DDP and torch's ZeroRedundancyOptimizer over gloo"
LAYERS, WIDTH, BATCH = 12, 1536, 4  # as in benchmarks.training_step
PARAMETERS = LAYERS * WIDTH**2
TRAINING, STEP, PINNED = "step of training", "step()", "step with Adam, MLP of 12 × 1536², 113 MB"


class Training:
    """Trains a perceptron by Adam."""

    def __init__(self, quick: bool, optimizer_of: Callable[[torch.nn.Module], Any], ddp: bool = False) -> None:
        torch.manual_seed(0)
        layers, width = (2, 64) if quick else (LAYERS, WIDTH)
        model, self._batch = perceptron(layers, width, BATCH, bias=False)
        self._model = DistributedDataParallel(model) if ddp else model
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


def our_training(name: str, quick: bool) -> Training:
    import perseus_like.torch as hvd

    makers: dict[str, Callable[[torch.nn.Module], Any]] = {
        SHARDED: lambda model: hvd.ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-4),
        DISTRIBUTED: lambda model: hvd.DistributedOptimizer(adam(model)),
        BY_SHARD: lambda model: hvd.DistributedOptimizer(adam(model), model.named_parameters(), shard=True),
    }
    return Training(quick, makers[name])


# --- against other optimizers ----------------------------------------------------------------------------------------


def serve_trainings(pipe: Connection, store: str, rank: int, size: int, quick: bool) -> None:
    """Trains by torch alone, over gloo, as often as each request says. Each names a contender.

    It is a process of its own, because this library changes how memory is allocated.
    """
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)

    def by_shards(model: torch.nn.Module) -> torch.optim.Optimizer:
        return ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-4, fused=True)

    trainings: dict[str, Training] = {}
    while request := pipe.recv():
        name, count = request
        if name not in trainings:
            trainings[name] = Training(quick, by_shards if name == DDP_ZERO else adam, ddp=name != ALONE)
        pipe.send(Contender.of(name, trainings[name].step).seconds(count))
    dist.destroy_process_group()


def against_others(options: Any) -> None:
    world = World()
    # Pinned ranks may be many, so fewer models take part.
    ours = (DISTRIBUTED, BY_SHARD) if options.placement else (SHARDED, DISTRIBUTED)
    theirs = (ALONE, DDP) if options.placement else (ALONE, DDP, DDP_ZERO)
    work = PINNED if options.placement else TRAINING
    result = Result("sharded_optimizer", "Sharded optimizer", world, options, ours[:1])
    trainings = {name: our_training(name, options.quick) for name in ours}
    whole = [Contender.of(name, each.step) for name, each in trainings.items()]
    with harness.process_that(
        serve_trainings, str(world.folder / "gloo"), world.rank, world.size, options.quick
    ) as train:

        def plain(name: str) -> Contender:
            return Contender(name, lambda count: train((name, count)), alone=name == ALONE)

        result.measure(work, [*whole, *map(plain, theirs)], untimed=1)
    result.measure(STEP, [Contender(name, each.steps_only) for name, each in trainings.items()], untimed=1)
    mine = result.best(TRAINING, SHARDED)
    result.bar(TRAINING, "time / one process alone", "≤", 0.97, ratio(mine, result.best(TRAINING, ALONE)))
    for peer, limit in ((DDP, 2.3), (DDP_ZERO, 3.0)):
        result.bar(TRAINING, f"faster than {peer}", "≥", limit, ratio(result.best(TRAINING, peer), mine))
    of_ours = ratio(result.best(STEP, SHARDED), result.best(STEP, DISTRIBUTED))
    result.bar(STEP, "time / DistributedOptimizer", "≤", 0.35, of_ours, ranks=4)
    result.publish()


# --- over the number of ranks ----------------------------------------------------------------------------------------


def memory_and_time(options: Any) -> None:
    """Measures both optimizers in this job. Rank 0 writes the result."""
    world = World()

    def memory() -> float:
        gc.collect()
        world.barrier()
        return world.total([memory_bytes()])[0] / MIB

    for name in COMPARED:
        our_training(name, quick=True).step()  # loads code that both need
    result: dict[str, list[float]] = {}
    for name in COMPARED:
        before = memory()
        training = our_training(name, options.quick)
        training.steps_only(2)
        used = memory() - before
        seconds = [world.most([training.step()])[0] for _ in range(2 if options.quick else 15)]
        result[name] = [used, 1e3 * statistics.median(seconds)]
        del training
    if world.rank == 0:
        (options.output / "one_copy.json").write_text(json.dumps(result))


def over_ranks(options: Any, arguments: Sequence[str]) -> int:
    found: dict[int, dict[str, list[float]]] = {}
    print(f"| ranks | {' | '.join(f'{name}: MiB | ms' for name in COMPARED)} |\n|---|---|---|---|---|", flush=True)
    for count in options.counts:
        options.np = count
        if code := harness.start_job(arguments, options):
            return code
        found[count] = json.loads((options.output / "one_copy.json").read_text())
        cells = [f"{value:.0f}" for name in COMPARED for value in found[count][name]]
        print(f"| {count} | {' | '.join(cells)} |", flush=True)
    if options.picture is None:
        return 0
    with report.pictures([options.picture], ("memory of the host, MiB", "time of step(), ms"), 4.5, 3.5) as panels:
        for place, axes in enumerate(panels):
            lines = {name: {count: each[name][place] for count, each in found.items()} for name in COMPARED}
            report.plot_lines(axes, lines, COMPARED, {count: str(count) for count in found})
            axes.set_xlabel("ranks")
            axes.set_ylim(bottom=0)
    return 0


# --- data ------------------------------------------------------------------------------------------------------------

GB = 1_000_000_000
ONE_LOADS, EACH = "one process loads", "every rank loads"
COPIED, MAPPED = WAYS = "hvd.shared, np.load", "hvd.shared, np.load with mmap_mode"
PAGE = 4096


def new_file(nbytes: int) -> Path:
    """Writes a file of random bytes, which stay in the system's cache of files."""
    with tempfile.NamedTemporaryFile(suffix=".npy", delete=False) as file:
        np.save(file, np.random.default_rng(0).integers(0, 256, nbytes, np.uint8))
    return Path(file.name)


def loads(world: World, path: Path) -> dict[str, Callable[[], Any]]:
    import perseus_like.numpy as hvd

    load = functools.partial(np.load, path)
    mapped = functools.partial(np.load, path, mmap_mode="r")
    return {
        ONE_LOADS: lambda: load() if world.rank == 0 else None,
        EACH: load,
        COPIED: lambda: hvd.shared(load, "copied"),
        MAPPED: lambda: hvd.shared(mapped, "mapped"),
    }


def time_and_memory(world: World, load: Callable[[], Any]) -> tuple[float, float]:
    """Returns this rank's seconds until it has the data, and the memory of all ranks together."""
    gc.collect()
    before = memory_bytes()
    world.barrier()
    begin = time.perf_counter()
    data = load()
    seconds = time.perf_counter() - begin
    if data is not None:
        data[::PAGE].sum(dtype=np.int64)  # reads each page, as a training would do sooner or later
    world.barrier()  # no rank measures before all have read
    return seconds, world.total([memory_bytes() - before])[0]


def shared_data(options: Any) -> None:
    import perseus_like.torch as hvd

    world = World()
    nbytes = GB // 100 if options.quick else GB
    path = hvd.broadcast_object(new_file(nbytes) if world.rank == 0 else None, 0)
    seconds: dict[str, list[float]] = {}
    memory: dict[str, float] = {}
    try:
        for _ in range(2 if options.quick else 5):
            for name, load in loads(world, path).items():
                took, memory[name] = time_and_memory(world, load)
                seconds.setdefault(name, []).append(took)
    finally:
        world.barrier()
        if world.rank == 0:
            path.unlink()
    result = Result("shared_data", "Data of which a host has one copy", world, options, WAYS)
    work, ranks = f"{nbytes / 1e6:.0f} MB", world.size
    result.add_row(work, {name: harness.summary(world.most(times)) for name, times in seconds.items()}, nbytes)
    result.facts = {f"memory of all ranks, {name}, GB": value / GB for name, value in memory.items()}
    most = max(memory[name] for name in WAYS) / GB
    result.bar(work, f"memory of {ranks} ranks", "≤", 1.05, most, "GB", ranks=ranks)
    for name in WAYS:
        slower = ratio(result.best(work, name), result.best(work, ONE_LOADS))
        result.bar(work, f"{name}: time / one load", "≤", 1.1, slower, ranks=ranks)
    result.publish()


# --- the kernels -----------------------------------------------------------------------------------------------------

HYPERPARAMETERS = {"learning_rate": 1e-4, "weight_decay": 0.01}
# The bytes that a step reads and writes for each float32 parameter, including its gradient.
TRAFFIC = {"adam": 28, "adamw": 28, "sgd": 20}
COPY, STREAMING = "copy with the same traffic", "streaming copy with the same traffic"


def our_kernel(kind: str, count: int) -> harness.Call:
    from perseus_like import _core
    from perseus_like.tables import DType

    parameters, gradient, first, second = torch.randn(count), torch.randn(count), torch.zeros(count), torch.zeros(count)
    options: dict[str, Any] = {**HYPERPARAMETERS, "kind": kind, "step": 2}
    if kind == "sgd":
        options["momentum"] = 0.9
    gradients, states = [gradient.data_ptr()], (first.data_ptr(), second.data_ptr(), count)
    kept = parameters, gradient, first, second

    def once() -> object:
        _core.optimizer_step(options, int(DType.float32), gradients, parameters.data_ptr(), 0, *states)
        return kept

    return once


def torchs_kernel(kind: str, count: int) -> harness.Call:
    parameter = torch.nn.Parameter(torch.randn(count))
    parameter.grad = torch.randn(count)
    options: dict[str, Any] = {"lr": 1e-4, "weight_decay": 0.01, "fused": True}
    if kind == "sgd":
        return torch.optim.SGD([parameter], momentum=0.9, **options).step
    return (torch.optim.AdamW if kind == "adamw" else torch.optim.Adam)([parameter], **options).step


def copy(nbytes: int, streaming: bool) -> harness.Call:
    """Copies half of the bytes, so that it reads and writes so many."""
    from perseus_like import _core

    source, target = torch.ones(nbytes // 2, dtype=torch.uint8), torch.ones(nbytes // 2, dtype=torch.uint8)
    return lambda: _core.copy(target.data_ptr(), source.data_ptr(), nbytes // 2, streaming)


def kernels(options: Any) -> None:
    result = Result("optimizer_step", "Optimizer steps on one core", World(), options, ("ours",))
    count, ranks = PARAMETERS // 1000 if options.quick else PARAMETERS, result.world.size
    for kind, traffic in TRAFFIC.items():
        ways = {
            "ours": our_kernel(kind, count),
            "torch, fused": torchs_kernel(kind, count),
            COPY: copy(traffic * count, streaming=False),
            STREAMING: copy(traffic * count, streaming=True),
        }
        result.measure(kind, [Contender.of(*way) for way in ways.items()], traffic * count, untimed=1)
        mine = result.best(kind, "ours")
        of_copy, of_torch = (ratio(result.best(kind, *names), mine) for names in ((COPY, STREAMING), ("torch, fused",)))
        result.bar(kind, "bandwidth / that of the faster copy", "≥", 0.9, of_copy, ranks=ranks)
        result.bar(kind, "speed / torch, fused", "≥", 1.0, of_torch, ranks=ranks)
    result.publish()


def on_every_rank(options: Any) -> None:
    by_option = ((options.kernels, kernels), (options.data, shared_data), (options.counts, memory_and_time))
    next((run for is_chosen, run in by_option if is_chosen), against_others)(options)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", action="store_true", help="memory and time of data by hvd.shared")
    parser.add_argument("--kernels", action="store_true", help="the kernels of the optimizers alone")
    parser.add_argument("--counts", type=int, nargs="+", help="memory and time of step() with so many ranks")
    parser.add_argument("--picture", type=Path, help="an SVG file to draw, for --counts")


def start(options: Any, arguments: Sequence[str]) -> int:
    return over_ranks(options, arguments) if options.counts else harness.start_job(arguments, options)


if __name__ == "__main__":
    harness.main(on_every_rank, seconds=20, add_options=add_options, start=start)
