"""A job of ranks, and contenders that alternate within one run, so that their ratios do not depend on the machine."""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import ROOT

FOLDER_VARIABLE = "PERSEUS_BENCHMARK_FOLDER"
LAUNCH_GRACE_SECONDS = 20
SLOW_SECONDS = 0.05  # of an operation whose first times are as good as any for an estimate

# A reducer returns a function that reduces the given tensor once.
Reducer = Callable[[Any], Callable[[], object]]
# The reason that the results show for a peer that is not installed.
NOT_INSTALLED = "not installed"


class Missing(Exception):
    """A peer cannot take part in the measurement. The text says why."""


@dataclass
class Contender:
    """One way to do the work.

    `run(count)` does the work `count` times, and returns the seconds if it measures them itself. If `alone` is true,
    only rank 0 runs it while the other ranks sleep.
    """

    name: str
    run: Callable[[int], float | None]
    alone: bool = False

    @staticmethod
    def of(name: str, once: Callable[[], object]) -> Contender:
        def run(count: int) -> None:
            for _ in range(count):
                once()

        return Contender(name, run)


@dataclass
class Summary:
    """The seconds of one operation over all rounds. The time of a round is the slowest rank's mean."""

    median: float
    low: float  # a quarter of the rounds is below
    high: float  # a quarter of the rounds is above
    first: float  # the median of each round's first operation, which finds the caches full of other work
    rounds: int
    per_round: int  # operations in a row within each round
    by_rank: Sequence[float] = ()  # the median of each rank's own time

    @staticmethod
    def of(times: Sequence[float], firsts: Sequence[float], per_round: int, by_rank: Sequence[float] = ()) -> Summary:
        low, median, high = (float(value) for value in np.percentile(times, [25, 50, 75]))
        return Summary(median, low, high, float(np.median(firsts)), len(times), per_round, by_rank)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Budget:
    """The length of a measurement."""

    seconds: float  # the approximate time for all contenders of a row together
    least_rounds: int = 5
    most_rounds: int = 200
    burst_seconds: float = 0.002  # operations in a row, as training does them: at least this long
    most_per_round: int = 200
    # Each burst starts with this number of operations whose time does not count. They fill the caches.
    untimed: int = 6


class World:
    """This rank among the others, joined through the package that is measured."""

    def __init__(self) -> None:
        import perseus_like.torch as hvd

        hvd.init()
        self._hvd = hvd
        self.rank, self.size = hvd.rank(), hvd.size()
        self.folder = Path(os.environ[FOLDER_VARIABLE])

    @property
    def description(self) -> str:
        from perseus_like import _core

        return _core.description()

    def barrier(self) -> None:
        self._hvd.barrier()

    def most(self, values: Sequence[float]) -> list[float]:
        """Returns the largest value of any rank, for each value."""
        import torch

        mine = torch.tensor(values, dtype=torch.float64)
        found: list[float] = self._hvd.allreduce(mine, op=self._hvd.Max, name="benchmarks.most").tolist()
        return found

    def by_rank(self, value: float) -> list[float]:
        """Returns the value of each rank."""
        import torch

        mine = torch.tensor([value], dtype=torch.float64)
        found: list[float] = self._hvd.allgather(mine, name="benchmarks.by_rank").tolist()
        return found

    def same_everywhere(self, value: float) -> bool:
        largest, negative_smallest = self.most([value, -value])
        return largest == -negative_smallest


def measure(world: World, contenders: Sequence[Contender], budget: Budget) -> dict[str, Summary]:
    """Alternates the contenders, each round beginning with another one."""
    estimates = _estimate(world, contenders)
    repeats = [min(max(round(budget.burst_seconds / once), 1), budget.most_per_round) for once in estimates]
    per_round = sum(once * (repeat + budget.untimed) for once, repeat in zip(estimates, repeats, strict=True))
    rounds = min(max(int(budget.seconds / per_round), budget.least_rounds), budget.most_rounds)
    times: list[list[float]] = [[] for _ in contenders]
    firsts: list[list[float]] = [[] for _ in contenders]
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            for place in range(len(contenders)):
                which = (place + number) % len(contenders)
                first, mean = _timed(world, contenders[which], repeats[which], budget.untimed)
                firsts[which].append(first)
                times[which].append(mean)
    finally:
        gc.enable()
    summaries = {}
    for contender, mine, begun, repeat in zip(contenders, times, firsts, repeats, strict=True):
        by_rank = world.by_rank(float(np.median(mine)))
        summaries[contender.name] = Summary.of(world.most(mine), world.most(begun), repeat, by_rank)
    return summaries


def _estimate(world: World, contenders: Sequence[Contender]) -> list[float]:
    """Returns the seconds of one operation. The second operation of a slow one is enough."""
    begun = world.most([_timed(world, contender, 1, 1)[1] for contender in contenders])
    once = [
        first if first > SLOW_SECONDS else min(_timed(world, contender, 2, 1)[1] for _ in range(2))
        for contender, first in zip(contenders, begun, strict=True)
    ]
    return [max(value, 1e-7) for value in world.most(once)]


def _timed(world: World, contender: Contender, repeat: int, untimed: int) -> tuple[float, float]:
    """Returns the seconds of the first operation, and the mean of `repeat` later operations."""
    world.barrier()
    if contender.alone and world.rank != 0:
        return 0.0, 0.0
    first = _seconds(contender, 1)
    if untimed > 1:
        contender.run(untimed - 1)
    return first, _seconds(contender, repeat) / repeat


def _seconds(contender: Contender, count: int) -> float:
    begin = time.perf_counter()
    own = contender.run(count)
    return time.perf_counter() - begin if own is None else own


# --- the world -------------------------------------------------------------------------------------------------------


def parser(description: str, seconds: float) -> argparse.ArgumentParser:
    """Returns a parser of the options that all benchmarks have."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("-np", type=int, default=2, metavar="RANKS", help="ranks, all on this machine (default 2)")
    made.add_argument(
        "--seconds", type=float, default=seconds, help="about how long each row takes (default %(default)s)"
    )
    made.add_argument("--quick", action="store_true", help="tiny sizes and few rounds: does it run at all?")
    made.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results", help="folder of the results")
    made.add_argument(
        "--timeout", type=float, default=600, help="seconds until the world is ended (default %(default)s)"
    )
    return made


def budget_of(options: argparse.Namespace, untimed: int = Budget.untimed) -> Budget:
    if options.quick:
        return Budget(0.02, least_rounds=2, most_rounds=3, most_per_round=3, untimed=1)
    return Budget(options.seconds, untimed=untimed)


def in_world() -> bool:
    return FOLDER_VARIABLE in os.environ


def start_world(module: str, arguments: Sequence[str], options: argparse.Namespace, *, with_mpi: bool = False) -> int:
    """Runs `python -m module arguments` on every rank, and returns the exit code."""
    options.output.mkdir(parents=True, exist_ok=True)
    launcher = [sys.executable, "-m", "perseus_like.launch", "--no-prefix", "-np", str(options.np)]
    # The variable is set for the ranks only, because the launcher would import its package from the source tree.
    launcher += ["-x", f"PYTHONPATH={os.pathsep.join(filter(None, (str(ROOT), os.environ.get('PYTHONPATH'))))}"]
    if with_mpi:
        launcher += ["--mpi", "--mpirun", str(mpirun())]
    command = [*launcher, sys.executable, "-m", module, *arguments]
    with tempfile.TemporaryDirectory(prefix="perseus-benchmark-") as folder:
        # Each rank has one thread, because ranks that share cores would wait for the threads of one another.
        environment = {**os.environ, FOLDER_VARIABLE: folder, "OMP_NUM_THREADS": "1"}
        # In the source tree, `-m perseus_like.launch` would find another package than the installed one.
        with subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL) as world:
            return _wait(world, options.timeout)


def _wait(world: subprocess.Popen[bytes], limit: float) -> int:
    try:
        return world.wait(limit)
    except BaseException as error:
        world.terminate()  # perseusrun ends its ranks, and whatever they have started
        try:
            world.wait(LAUNCH_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            world.kill()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        print(f"the benchmark took longer than {limit:g} s and was ended", file=sys.stderr)
        return 1


def mpirun() -> Path | None:
    """Returns the mpirun of this environment's MPI. Another one may belong to another library than mpi4py uses."""
    found = shutil.which("mpirun", path=str(Path(sys.executable).parent))
    return Path(found) if found else None


# ResNet-50 has the width 64. With this width, and norms only on the main path, the model has as many bytes and tensors
# as in the runs whose numbers the bars quote.
WIDTH = 78


def resnet_shapes(width: int = WIDTH) -> list[tuple[int, ...]]:
    """Returns the shapes of the parameters of a ResNet of 50 layers (He et al., 2016, arXiv:1512.03385)."""
    shapes: list[tuple[int, ...]] = [(width, 3, 7, 7), (width,), (width,)]
    channels_in = width
    for stage, blocks in enumerate((3, 4, 6, 3)):
        narrow, wide = width << stage, 4 * width << stage
        for block in range(blocks):
            for shape in ((narrow, channels_in, 1, 1), (narrow, narrow, 3, 3), (wide, narrow, 1, 1)):
                shapes += [shape, (shape[0],), (shape[0],)]
            if block == 0:
                shapes.append((wide, channels_in, 1, 1))
            channels_in = wide
    return [*shapes, (1000, channels_in), (1000,), (1,)]
