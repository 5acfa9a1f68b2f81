"""Measures how long training stands still when torchft loses a replica, over this library and over gloo.

    .venv-torch-clients/bin/python -m benchmarks.lost_replica --rounds 5

Two replicas train. One is killed, and the time until the next step of the other one counts. The two libraries
alternate. The lighthouse of torchft notices a loss by missing heartbeats, so its time limit is part of the result.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from . import ROOT

KINDS = ("perseus", "gloo")
LIMIT_SECONDS = 60.0
LIGHTHOUSE = """
import sys
from torchft.coordination import LighthouseServer

server = LighthouseServer(bind="[::]:0", min_replicas=1, join_timeout_ms=1000, heartbeat_timeout_ms=int(sys.argv[1]))
print(server.address(), flush=True)
sys.stdin.read()
server.shutdown()
"""
Process = subprocess.Popen[str]


@contextmanager
def program(log: IO[str], *arguments: str) -> Iterator[Process]:
    """Runs a Python program, and kills it at the end, or after LIMIT_SECONDS."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    timer = threading.Timer(LIMIT_SECONDS, process.kill)
    timer.start()
    try:
        yield process
    finally:
        timer.cancel()
        process.kill()
        process.wait()


def first_line(process: Process) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def time_of_step(process: Process, replicas: int, count: int = 1) -> float:
    """Returns the clock at the `count`-th next step in which `replicas` take part."""
    while line := first_line(process).split():
        count -= int(line[1]) == replicas
        if count == 0:
            return float(line[2])
    raise RuntimeError(
        f"a replica ended before a step with {replicas} replicas, or was killed after {LIMIT_SECONDS:.0f} s; "
        "see the log"
    )


def seconds_without_step(kind: str, heartbeat_ms: int, log: IO[str]) -> float:
    """Returns the seconds from the kill of one replica to the next step of the other one."""
    with program(log, "-c", LIGHTHOUSE, str(heartbeat_ms)) as lighthouse:
        replica = ("-m", "benchmarks.torchft_replica", kind, first_line(lighthouse))
        with program(log, *replica, "0") as survivor, program(log, *replica, "1") as lost:
            time_of_step(survivor, 2, count=20)
            killed = time.monotonic()
            lost.send_signal(signal.SIGKILL)
            return time_of_step(survivor, 1) - killed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="kills for each library")
    parser.add_argument("--heartbeat-ms", type=int, default=2000, help="the lighthouse's limit for a heartbeat")
    parser.add_argument("--log", type=Path, default=ROOT / "build/lost_replica.log", help="the replicas' messages")
    chosen = parser.parse_args()
    chosen.log.parent.mkdir(parents=True, exist_ok=True)
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with chosen.log.open("w") as log:
        for _ in range(chosen.rounds):
            for kind in KINDS:
                seconds[kind].append(seconds_without_step(kind, chosen.heartbeat_ms, log))
                print(f"{kind:8} {seconds[kind][-1]:7.3f} s", flush=True)
    for kind in KINDS:
        found = seconds[kind]
        print(f"{kind:8} median {statistics.median(found):.3f} s, {min(found):.3f} to {max(found):.3f} s")


if __name__ == "__main__":
    main()
