"""MXNet's adapter: 154 tensors beside the torch adapter, and how many operations are under way at once.

python -m benchmarks.mxnet_engine --mxnet .venv-mxnet/bin/python

MXNet and a current torch want different releases of NumPy. So each is measured in worlds of its own, in turns, and
their medians are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import ROOT
from .harness import resnet_shapes

IN_FLIGHT, DELAY_SECONDS = 16, 0.05
Work = Callable[[], None]


def torch_work(shapes: Sequence[tuple[int, ...]]) -> dict[str, Work]:
    import torch

    import perseus_like.torch as hvd

    hvd.init()
    tensors = [torch.zeros(shape) for shape in shapes]

    def run() -> None:
        handles = [hvd.allreduce_async_(tensor, op=hvd.Sum, name=str(place)) for place, tensor in enumerate(tensors)]
        for handle in handles:
            hvd.synchronize(handle)

    return {"torch": run}


def mxnet_work(shapes: Sequence[tuple[int, ...]]) -> dict[str, Work]:
    import mxnet as mx

    import perseus_like.mxnet as hvd

    hvd.init()

    def one_by_one(arrays: list[Any], tag: str) -> Work:
        def run() -> None:
            for place, array in enumerate(arrays):
                hvd.allreduce_(array, op=hvd.Sum, name=f"{tag}.{place}", priority=-place)
            for array in arrays:
                array.wait_to_read()

        return run

    def grouped(arrays: list[Any]) -> Work:
        def run() -> None:
            hvd.grouped_allreduce_(arrays, op=hvd.Sum, name="grouped")
            arrays[-1].wait_to_read()

        return run

    private = [mx.nd.zeros(shape) for shape in shapes]
    shared = [hvd.empty(shape) for shape in shapes]
    for array in shared:
        array[:] = 0
    return {
        "mxnet": one_by_one(private, "private"),
        "mxnet, grouped": grouped(private),
        "mxnet, arena": one_by_one(shared, "arena"),
    }


def in_flight() -> float:
    """Returns the seconds of IN_FLIGHT allreduces, each of which lasts DELAY_SECONDS because the last rank is late."""
    import mxnet as mx

    import perseus_like.mxnet as hvd

    arrays = [mx.nd.ones((100,)) for _ in range(IN_FLIGHT)]
    mx.nd.waitall()
    hvd.barrier()
    begin = time.perf_counter()
    if hvd.rank() == hvd.size() - 1:
        time.sleep(DELAY_SECONDS)
    for place, array in enumerate(arrays):
        hvd.allreduce_(array, name=f"in flight.{place}")
    for array in arrays:
        array.wait_to_read()
    return time.perf_counter() - begin


def on_every_rank(framework: str, seconds: float, narrow: bool) -> None:
    """Measures each way of the work. Rank 0 prints the median of the slowest rank."""
    import numpy as np

    import perseus_like.numpy as hvd

    shapes = resnet_shapes(2) if narrow else resnet_shapes()
    found: dict[str, list[float]] = {}
    for name, run in (torch_work if framework == "torch" else mxnet_work)(shapes).items():
        for _ in range(3):
            run()
        hvd.barrier()
        # Rank 0 decides by its clock when all ranks stop.
        deadline = time.perf_counter() + seconds
        times: list[float] = []
        while hvd.broadcast(np.array([time.perf_counter() < deadline]), 0)[0]:
            hvd.barrier()
            begin = time.perf_counter()
            run()
            times.append(time.perf_counter() - begin)
        found[name] = hvd.allreduce(np.array(times), op=hvd.Max).tolist()
    if framework == "mxnet":
        found["in flight"] = hvd.allreduce(np.array([in_flight() for _ in range(5)]), op=hvd.Max).tolist()
    if hvd.rank() == 0:
        print(json.dumps(found))


def world(python: Path, framework: str, options: argparse.Namespace) -> dict[str, list[float]]:
    launcher = [str(python), "-m", "perseus_like.launch", "--no-prefix", "-np", str(options.np)]
    search = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [
        *launcher,
        "-x",
        f"PYTHONPATH={search}",
        str(python),
        "-m",
        "benchmarks.mxnet_engine",
        "--rank",
        framework,
    ]
    command += ["--seconds", str(options.seconds), *(["--quick"] if options.quick else [])]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
            timeout=300,
            check=True,
        )
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("-np", type=int, default=2, metavar="RANKS", help="ranks, all on this machine (default 2)")
    made.add_argument("--mxnet", type=Path, default=ROOT / ".venv-mxnet" / "bin" / "python", help="Python with MXNet")
    made.add_argument("--seconds", type=float, default=2, help="for each way in each world (default %(default)s)")
    made.add_argument("--worlds", type=int, default=3, help="of each framework, in turns (default %(default)s)")
    made.add_argument("--quick", action="store_true", help="tiny sizes: does it run at all?")
    made.add_argument("--rank", choices=("torch", "mxnet"), help=argparse.SUPPRESS)
    options = made.parse_args(arguments)
    if options.rank is not None:
        on_every_rank(options.rank, options.seconds, options.quick)
        return 0
    times: dict[str, list[float]] = {}
    for _ in range(options.worlds):
        for framework, python in (("torch", Path(sys.executable)), ("mxnet", options.mxnet.absolute())):
            for name, values in world(python, framework, options).items():
                times.setdefault(name, []).extend(values)
    together = times.pop("in flight")
    reference = statistics.median(times["torch"])
    print("154 tensors like ResNet-50's, 143 MiB" if not options.quick else "154 tensors of a narrow network")
    for name, values in times.items():
        median = statistics.median(values)
        print(f"  {name:16} {median * 1e3:8.2f} ms  {median / reference:5.2f} of torch's  ({len(values)} times)")
    print(f"{IN_FLIGHT} operations of {DELAY_SECONDS * 1e3:g} ms each: {statistics.median(together) * 1e3:.0f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
