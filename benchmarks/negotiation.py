"""The cost of negotiation between hosts: measured on a few hosts, and modelled for many.

    python -m benchmarks.negotiation            # 2, 4 and 8 hosts in network namespaces, as root
    python -m benchmarks.negotiation --model 15 5   # the model alone: microseconds of a message's way, of handling one

A barrier is an agreement and nothing else. Reports go up the tree of hosts' leaders and the plan comes down
(csrc/control/tree.cc): the model has every leader handle its messages one after the other, and every message take a
while on its way. Both numbers come from 2 and 4 hosts; 8 hosts show whether the model holds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))
from tests.hosts.links import why_unsupported
from tests.hosts.network_test_bed import NetworkTestBed

from . import ROOT
from .negotiation_world import RESULT_VARIABLE, TENSORS

FAN_OUT = 16  # kFanOut of csrc/control/tree.h
MEASURED = (2, 4, 8)
PREDICTED = (2, 4, 8, 16, 64, 256, 1000, 4096)


def parents(hosts: int) -> list[int]:
    """Returns the parent of each leader but the first, as in csrc/control/tree.cc."""
    return [(number - 1) // FAN_OUT for number in range(1, hosts)]


def predict(hosts: int, way: float, handling: float) -> float:
    """Returns the seconds from the time when all leaders have a report until the last leader has the plan."""
    above = [-1, *parents(hosts)]
    arrivals: list[list[float]] = [[] for _ in range(hosts)]
    for leader in range(hosts - 1, 0, -1):  # those below have higher numbers
        arrivals[above[leader]].append(_handled(arrivals[leader], handling) + handling + way)
    has_plan = [0.0] * hosts
    free = [0.0] * hosts  # from when on a leader can send again
    has_plan[0] = free[0] = _handled(arrivals[0], handling)
    for leader in range(1, hosts):
        free[above[leader]] += handling
        has_plan[leader] = free[leader] = free[above[leader]] + way + handling
    return max(has_plan)


def _handled(arrivals: list[float], handling: float) -> float:
    """Returns the time at which the last message has been handled."""
    now = 0.0
    for arrival in sorted(arrivals):
        now = max(now, arrival) + handling
    return now


def fit(measured: dict[int, float]) -> tuple[float, float]:
    """Returns the times of transfer and handling with which the model gives the measured times of two and four hosts.

    The model is linear in both.
    """
    (few, few_seconds), (more, more_seconds) = sorted(measured.items())[:2]
    by_way = predict(few, 1.0, 0.0), predict(more, 1.0, 0.0)
    by_handling = predict(few, 0.0, 1.0), predict(more, 0.0, 1.0)
    scale = by_way[0] * by_handling[1] - by_way[1] * by_handling[0]
    handling = max(0.0, (by_way[0] * more_seconds - by_way[1] * few_seconds) / scale)
    return (few_seconds - by_handling[0] * handling) / by_way[0], handling


def measure(hosts: int) -> dict[str, Any]:
    with NetworkTestBed(hosts) as test_bed, tempfile.TemporaryDirectory(prefix="perseus-benchmark-") as folder:
        result = Path(folder, "result.json")
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        line = test_bed.perseusrun(dict.fromkeys(test_bed.hosts, 1), "-x", f"PYTHONPATH={path}", folder=Path(folder))
        work = [sys.executable, "-m", "benchmarks.negotiation_world"]
        environment = {**os.environ, RESULT_VARIABLE: str(result), "OMP_NUM_THREADS": "1"}
        subprocess.run([*line, *work], env=environment, stdin=subprocess.DEVNULL, timeout=120, check=True)
        found: dict[str, Any] = json.loads(result.read_text())
        return found


def show(way: float, handling: float, measured: dict[int, float]) -> None:
    print(f"\na message's way {way * 1e6:.0f} µs, handling one {handling * 1e6:.1f} µs\n")
    print("| hosts | levels | model, µs | measured, µs |\n|---|---|---|---|")
    for hosts in PREDICTED:
        levels, leader = 0, hosts - 1
        while leader > 0:
            levels, leader = levels + 1, (leader - 1) // FAN_OUT
        seen = f"{measured[hosts] * 1e6:.0f}" if hosts in measured else "–"
        print(f"| {hosts} | {levels} | {predict(hosts, way, handling) * 1e6:.0f} | {seen} |")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", nargs=2, type=float, metavar=("WAY", "HANDLING"), help="microseconds; measure nothing"
    )
    options: Any = parser.parse_args(arguments)
    if options.model:
        show(options.model[0] * 1e-6, options.model[1] * 1e-6, {})
        return 0
    if (reason := why_unsupported()) is not None:
        print(f"no network-namespace test bed here: {reason}", file=sys.stderr)
        return 77
    measured: dict[int, float] = {}
    columns = " | ".join(f"bytes for {count}" for count in TENSORS)
    print(f"| hosts | barrier, µs | {columns} |\n|---|---|{'---|' * len(TENSORS)}")
    for hosts in MEASURED:
        found = measure(hosts)
        measured[hosts] = found["barrier"]
        sent = " | ".join(f"{found['bytes'][str(count)]:.0f}" for count in TENSORS)
        print(f"| {hosts} | {found['barrier'] * 1e6:.0f} | {sent} |", flush=True)
    show(*fit(measured), measured)
    return 0


if __name__ == "__main__":
    sys.exit(main())
