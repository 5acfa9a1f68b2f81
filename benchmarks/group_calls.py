"""Allreduces of one small tensor: through torch's process groups, in Python and in C++, and by `hvd.allreduce_`.

    python -m benchmarks.group_calls
    perseusrun -np 2 python -m benchmarks.group_calls --here    # one float, and 64 MB, over `perseus` and over `gloo`

Compiles the process group in C++ (python -m perseus_like.torch.build_group) into a temporary folder. Jobs with and
without it take turns. Needs a C++ compiler and ninja. With `--here` it compiles nothing, and measures torch.distributed
in the job that runs it. Ratios count; times drift with the machine.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import perseus_like.torch as hvd

from . import harness
from .harness import Call
from .report import print_microseconds
from .tensor_parallel import CALLS, Job, calls_over, medians_of, our_allreduce

KIB = (8, 64)
LOOPS = Path(__file__).with_suffix(".cc")


def compiled_loops(folder: str) -> Any:
    """Returns the module with loops in C++. The first call compiles it."""
    from torch.utils import cpp_extension

    Path(folder).mkdir(exist_ok=True)
    options: dict[str, Any] = {"extra_cflags": ["-O2"], "build_directory": folder}
    return cpp_extension.load(name="group_calls", sources=[str(LOOPS)], **options)


def measure(job: Job, loops: Any, backends: Sequence[str]) -> dict[str, list[float]]:
    """Returns the seconds of each way, for each size."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    rows: dict[str, list[float]] = {}
    for tensor in [torch.zeros(size * 256) for size in KIB]:
        took = medians_of({"hvd.allreduce_": functools.partial(our_allreduce, tensor)})
        for backend in backends:
            if backend == "fake":  # torch's group in C++ that does nothing
                dist.init_process_group(backend, store=FakeStore(), rank=hvd.rank(), world_size=hvd.size())
            else:
                job.begin(backend)
            took |= medians_of(calls_over(backend, tensor))
            group: Any = dist.group.WORLD
            in_cxx: dict[str, Call] = {
                f"{backend}, group->allreduce in C++": functools.partial(loops.of_group, group, tensor, CALLS),
                f"{backend}, operators of compiled code in C++": functools.partial(
                    loops.of_operators, group.group_name, tensor, CALLS
                ),
            }
            took |= {name: seconds / CALLS for name, seconds in medians_of(in_cxx, 1).items()}
            job.end()
        for name, seconds in took.items():
            rows.setdefault(name, []).append(seconds)
    return rows


def on_every_rank(options: Any) -> None:
    torch.set_num_threads(1)
    job = Job()
    others = ["gloo", "fake"] if "OTHERS" in os.environ else []
    rows = measure(job, compiled_loops(f"{options.folder}/loops"), ["perseus", *others])
    if hvd.rank() == 0:
        Path(options.folder, "rows.json").write_text(json.dumps(rows))


def compare_here(quick: bool) -> int:
    import perseus_like.torch.distributed  # noqa: F401  # torch before 2.5 does not load it by itself

    torch.set_num_threads(1)
    dist.init_process_group("perseus")
    groups = {"perseus": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    for key, elements, repeats in (("one float", 1, 100), ("64 MB", 1 << 10 if quick else 1 << 24, 1)):
        tensor = torch.zeros(elements)
        calls = {name: functools.partial(dist.all_reduce, tensor, group=group) for name, group in groups.items()}
        harness.medians(calls, dist.barrier, 1)  # does not count
        ours, theirs = harness.medians(calls, dist.barrier, 1 if quick else 25, repeats).values()
        if dist.get_rank() == 0:
            times = f"perseus {ours * 1e3:9.3f} ms   gloo {theirs * 1e3:9.3f} ms"
            print(f"{key:9} {times}   {ours / theirs:.2f} of gloo", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    return 0


def start(options: Any, arguments: Sequence[str]) -> int:
    """Runs jobs with process groups in C++ if their module is in the folder of extensions."""
    if options.here:
        return compare_here(options.quick)
    times: dict[str, list[list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        build = [sys.executable, "-m", "perseus_like.torch.build_group"]
        subprocess.run(build, env={**os.environ, "TORCH_EXTENSIONS_DIR": f"{folder}/extensions"}, check=True)
        compiled_loops(f"{folder}/loops")
        os.environ["OTHERS"] = "1"  # these take part in the first job alone
        for _ in range(1 if options.quick else options.rounds):
            for kind, extensions in (("in C++", "extensions"), ("in Python", "none")):
                os.environ["TORCH_EXTENSIONS_DIR"] = f"{folder}/{extensions}"
                if code := harness.start_job([*arguments, "--folder", folder], options):
                    return code
                os.environ.pop("OTHERS", None)
                for name, row in json.loads(Path(folder, "rows.json").read_text()).items():
                    way = f"{name}; group {kind}" if name.startswith("perseus") else name
                    times.setdefault(way, []).append(row)
    least = {name: [min(column) for column in zip(*rows, strict=True)] for name, rows in sorted(times.items())}
    print_microseconds("least of the jobs, microseconds", least, [f"{size} KiB" for size in KIB])
    return 0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5, help="jobs of each kind (%(default)s)")
    parser.add_argument("--here", action="store_true", help="torch.distributed over perseus and gloo, in this job")
    parser.add_argument("--folder", help=argparse.SUPPRESS)


if __name__ == "__main__":
    harness.main(on_every_rank, add_options=add_options, start=start)
