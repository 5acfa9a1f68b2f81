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


def run(python: Path, launcher: str, *arguments: str) -> tuple[str, float]:
    """Runs a launcher that lies beside this Python. Returns its output, and the seconds."""
    command = [str(python.absolute().with_name(launcher)), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        done = subprocess.run(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, timeout=120, check=True
        )
        return done.stdout, time.perf_counter() - begin


def start_times(python: Path, horovod: Path | None) -> dict[str, float]:
    """Starts everything once. Returns the seconds of each."""
    output, _ = run(python, "perseusrun", "--no-prefix", "-np", "2", str(python), "-c", PROGRAM)
    times: dict[str, float] = json.loads(output.splitlines()[-1])
    times[PERSEUSRUN] = run(python, "perseusrun", "-np", "2", "true")[1]
    times["torchrun"] = run(python, "torchrun", "--nproc-per-node", "2", "--no-python", "true")[1]
    if horovod is not None:
        times["horovodrun"] = run(horovod, "horovodrun", "-np", "2", "true")[1]
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="starts of each (default %(default)s)")
    parser.add_argument("--horovod", type=Path, metavar="PYTHON", help="a Python that has Horovod and horovodrun")
    options = parser.parse_args()
    rounds = [start_times(Path(sys.executable), options.horovod) for _ in range(options.rounds)]
    print("| what | median | fastest | bar |\n|---|---|---|---|")
    for name in rounds[0]:
        values = [times[name] for times in rounds]
        median = statistics.median(values)
        limit = LIMITS.get(name)
        bar = "" if limit is None else f"≤ {limit * 1e3:.0f} ms: {'met' if median <= limit else 'NOT met'}"
        print(f"| {name} | {median * 1e3:.0f} ms | {min(values) * 1e3:.0f} ms | {bar} |")


if __name__ == "__main__":
    main()
