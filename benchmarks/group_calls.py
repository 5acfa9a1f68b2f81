"""Allreduces of one small tensor: through torch's process groups, in Python and in C++, and by `hvd.allreduce_`.

    python -m benchmarks.group_calls

Compiles the process group in C++ (python -m perseus_like.torch.build_group) into a temporary folder. Jobs with and
without it take turns. Needs a C++ compiler and ninja.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import perseus_like.torch as hvd

from .tensor_parallel import CALLS, Job, calls_over, microseconds

KIB = (8, 64)
LOOPS = Path(__file__).with_suffix(".cc")


def compiled_loops(folder: str) -> Any:
    """Returns the module with loops in C++. The first call compiles it."""
    from torch.utils import cpp_extension

    Path(folder).mkdir(exist_ok=True)
    options: dict[str, Any] = {"extra_cflags": ["-O2"], "build_directory": folder}
    return cpp_extension.load(name="group_calls", sources=[str(LOOPS)], **options)


def median_of(call: Callable[[], float]) -> float:
    took = []
    for _ in range(7):
        hvd.barrier()
        took.append(call())
    return statistics.median(took)


def begin(job: Job, backend: str) -> None:
    if backend == "fake":  # torch's group in C++ that does nothing
        dist.init_process_group(backend, store=FakeStore(), rank=hvd.rank(), world_size=hvd.size())
    else:
        job.begin(backend)


def measure(job: Job, loops: Any, backends: list[str]) -> dict[str, list[float]]:
    """Returns the microseconds of each way, for each size."""
    rows: dict[str, list[float]] = {}
    for tensor in [torch.zeros(size * 256) for size in KIB]:
        own = microseconds(lambda tensor=tensor: hvd.allreduce_(tensor, op=hvd.Sum, name="t"))  # type: ignore[misc]
        rows.setdefault("hvd.allreduce_", []).append(own)
        for backend in backends:
            begin(job, backend)
            group: Any = dist.group.WORLD
            for name, call in calls_over(backend, tensor).items():
                rows.setdefault(name, []).append(microseconds(call))
            for name, loop in ((group, loops.of_group), (group.group_name, loops.of_operators)):
                way = "group->allreduce" if name is group else "operators of compiled code"
                took = median_of(lambda loop=loop, name=name, tensor=tensor: loop(name, tensor, CALLS))  # type: ignore[misc]
                rows.setdefault(f"{backend}, {way} in C++", []).append(took)
            job.end()
    return rows


def world(folder: str, with_others: bool) -> None:
    """Runs on each rank of a job. Rank 0 prints the times."""
    torch.set_num_threads(1)
    job = Job()
    others = ["gloo", "fake"] if with_others else []
    rows = measure(job, compiled_loops(folder), ["perseus", *others])
    if hvd.rank() == 0:
        print(json.dumps(rows))
    hvd.shutdown()


def run(ranks: int, folder: str, extensions: str, with_others: bool) -> dict[str, list[float]]:
    """Runs a job with process groups in C++ if their module is in `extensions`."""
    command = [sys.executable, "-m", "perseus_like.launch", "--no-prefix", "-np", str(ranks), sys.executable, "-m"]
    command += ["benchmarks.group_calls", "--world", folder, *(["--others"] if with_others else [])]
    environment = {**os.environ, "TORCH_EXTENSIONS_DIR": extensions}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    rows: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-np", type=int, default=2, metavar="RANKS")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--world", help=argparse.SUPPRESS)
    parser.add_argument("--others", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.world:
        world(options.world, options.others)
        return
    with tempfile.TemporaryDirectory() as folder:
        build = [sys.executable, "-m", "perseus_like.torch.build_group"]
        subprocess.run(build, env={**os.environ, "TORCH_EXTENSIONS_DIR": f"{folder}/extensions"}, check=True)
        compiled_loops(f"{folder}/loops")
        times: dict[str, list[list[float]]] = {}
        for turn in range(options.rounds):
            for kind, extensions in (("in Python", "none"), ("in C++", "extensions")):
                found = run(options.np, f"{folder}/loops", f"{folder}/{extensions}", turn == 0 and kind == "in C++")
                for name, row in found.items():
                    is_group = name.startswith("perseus")
                    times.setdefault(f"{name}; group {kind}" if is_group else name, []).append(row)
    print(f"{'least of the jobs, microseconds':66}" + "".join(f"{size:4d} KiB" for size in KIB))
    for name, rows in sorted(times.items()):
        print(f"{name:66}" + "".join(f"{min(column):8.1f}" for column in zip(*rows, strict=True)))


if __name__ == "__main__":
    main()
