"""Measures hvd.shared: the memory of a host whose ranks use the same data, and the time until all ranks have it.

python -m benchmarks.shared_data -np 4
"""

from __future__ import annotations

import functools
import gc
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import harness
from .harness import Summary, World
from .idle import memory_bytes
from .record import Bar, Result, Row, publish, ratio

GB = 1_000_000_000
ALONE = "one process loads"
EACH = "every rank loads"
COPIED = "hvd.shared, np.load"
MAPPED = "hvd.shared, np.load with mmap_mode"
PAGE = 4096


def new_file(nbytes: int) -> Path:
    """Writes a file of random bytes, which stay in the system's cache of files."""
    with tempfile.NamedTemporaryFile(suffix=".npy", delete=False) as file:
        np.save(file, np.random.default_rng(0).integers(0, 256, nbytes, np.uint8))
    return Path(file.name)


def contenders(world: World, path: Path) -> dict[str, Callable[[], Any]]:
    import perseus_like.numpy as hvd

    load = functools.partial(np.load, path)
    mapped = functools.partial(np.load, path, mmap_mode="r")
    return {
        ALONE: lambda: load() if world.rank == 0 else None,
        EACH: load,
        COPIED: lambda: hvd.shared(load, "copied"),
        MAPPED: lambda: hvd.shared(mapped, "mapped"),
    }


def in_total(world: World, value: float) -> float:
    import torch

    import perseus_like.torch as hvd

    return float(hvd.allreduce(torch.tensor(value, dtype=torch.float64), op=hvd.Sum, name="benchmarks.in_total"))


def use(data: np.ndarray[Any, Any] | None) -> int:
    """Reads each page, as a training would do sooner or later."""
    return 0 if data is None else int(data[::PAGE].sum(dtype=np.int64))


def measured(world: World, load: Callable[[], Any]) -> tuple[float, float]:
    """Returns this rank's seconds until it has the data, and the memory of all ranks together."""
    gc.collect()
    before = memory_bytes()
    world.barrier()
    begin = time.perf_counter()
    data = load()
    seconds = time.perf_counter() - begin
    use(data)
    world.barrier()  # no rank measures before all have read
    return seconds, in_total(world, memory_bytes() - before)


def on_every_rank(options: Any) -> None:
    world = World()
    nbytes = GB // 100 if options.quick else GB
    # Every rank gets the path of rank 0.
    import perseus_like.torch as hvd

    path = hvd.broadcast_object(new_file(nbytes) if world.rank == 0 else None, 0)
    seconds: dict[str, list[float]] = {}
    memory: dict[str, float] = {}
    try:
        for _ in range(2 if options.quick else 5):
            for name, load in contenders(world, path).items():
                took, memory[name] = measured(world, load)
                seconds.setdefault(name, []).append(took)
    finally:
        world.barrier()
        if world.rank == 0:
            path.unlink()

    title = "Data of which a host has one copy"
    result = Result("shared_data", title, world, (COPIED, MAPPED), quick=options.quick)
    work = f"{nbytes / 1e6:.0f} MB"
    slowest = {name: world.most(times) for name, times in seconds.items()}
    row = Row(work, {name: Summary.of(times, times, 1) for name, times in slowest.items()}, nbytes)
    result.rows = [row]
    result.facts = {f"memory of all ranks, {name}, GB": value / GB for name, value in memory.items()}
    if not options.quick:
        result.bars = [
            Bar(work, f"memory of {world.size} ranks", "≤", 1.05, max(memory[COPIED], memory[MAPPED]) / GB, "GB"),
            *(
                Bar(work, f"{name}: time / one load", "≤", 1.1, ratio(row.median(name), row.median(ALONE)))
                for name in (COPIED, MAPPED)
            ),
        ]
    publish(result, options.output)
    world.barrier()


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    options = harness.parser("Memory and time of data that a host's ranks share.", seconds=10).parse_args(arguments)
    if harness.in_world():
        on_every_rank(options)
        return 0
    return harness.start_world("benchmarks.shared_data", arguments, options)


if __name__ == "__main__":
    sys.exit(main())
