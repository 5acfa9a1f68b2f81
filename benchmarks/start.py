"""Measures how long a job takes to start: import, init, and launchers.

    python -m benchmarks.start [--horovod HOROVOD/bin/python]

Each launcher starts two processes of `true`, and launchers take turns. torchrun comes with torch. horovodrun takes part
if a Python that has Horovod is named. Horovod 0.28.1 can still be built for MXNet, with Python 3.11 and PATH beginning
with its environment:

    pip install mxnet==1.9.1 numpy==1.23.5 "cmake<4" "setuptools<70" wheel cloudpickle cffi pyyaml psutil packaging
    HOROVOD_WITH_MXNET=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_PYTORCH=1 \\
        HOROVOD_WITHOUT_TENSORFLOW=1 pip install --no-build-isolation --no-deps horovod==0.28.1
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
from collections.abc import Mapping, Sequence
from pathlib import Path

IMPORT, INIT, PERSEUSRUN = "import, after torch", "hvd.init(), 2 ranks", "perseusrun -np 2 true"
LIMITS = {IMPORT: 0.05, INIT: 0.1, PERSEUSRUN: 0.3}  # seconds
# The program prints the seconds of the import and of init, each on the slower rank.
PROGRAM = f"""
import json, time
import torch
begin = time.perf_counter()
import perseus_like.torch as hvd
imported = time.perf_counter()
hvd.init()
times = torch.tensor([imported - begin, time.perf_counter() - imported])
times = hvd.allreduce(times, op=hvd.Max).tolist()
if hvd.rank() == 0:
    print(json.dumps(dict(zip(({IMPORT!r}, {INIT!r}), times))))
"""


def start_times(python: Path) -> dict[str, float]:
    """Returns the seconds of the import and of init in a job of two ranks, each on the slower rank."""
    done = run([beside(python, "perseusrun"), "--no-prefix", "-np", "2", str(python), "-c", PROGRAM])
    found: dict[str, float] = json.loads(done.splitlines()[-1])
    return found


def run(command: Sequence[str]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
            timeout=120,
            check=True,
        )
    return done.stdout


def seconds_of(command: Sequence[str]) -> float:
    begin = time.perf_counter()
    run(command)
    return time.perf_counter() - begin


def beside(python: Path, name: str) -> str:
    return str(python.absolute().with_name(name))


def launchers(python: Path, horovod: Path | None) -> dict[str, list[str]]:
    """Returns the commands of the launchers by their names in the table."""
    found = {
        PERSEUSRUN: [beside(python, "perseusrun"), "-np", "2", "true"],
        "torchrun": [beside(python, "torchrun"), "--nproc-per-node", "2", "--no-python", "true"],
    }
    if horovod is not None:
        found["horovodrun"] = [beside(horovod, "horovodrun"), "-np", "2", "true"]
    return found


def table(times: Mapping[str, Sequence[float]]) -> str:
    """Returns a Markdown table of the medians and their limits."""
    lines = ["| what | median | fastest | bar |", "|---|---|---|---|"]
    for name, values in times.items():
        median = statistics.median(values)
        limit = LIMITS.get(name)
        bar = "" if limit is None else f"≤ {limit * 1e3:.0f} ms: {'met' if median <= limit else 'NOT met'}"
        lines.append(f"| {name} | {median * 1e3:.0f} ms | {min(values) * 1e3:.0f} ms | {bar} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--rounds", type=int, default=10, help="starts of each (default %(default)s)")
    made.add_argument("--horovod", type=Path, metavar="PYTHON", help="a Python that has Horovod and horovodrun")
    options = made.parse_args(arguments)
    python = Path(sys.executable)
    times: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for name, seconds in start_times(python).items():
            times.setdefault(name, []).append(seconds)
        for name, command in launchers(python, options.horovod).items():
            times.setdefault(name, []).append(seconds_of(command))
    print(table(times))
    return 0


if __name__ == "__main__":
    sys.exit(main())
