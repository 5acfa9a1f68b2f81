"""Several hosts, which are network namespaces with slow links: ours beside the MPI alone, and the least time possible.

If this library uses UCX (PERSEUS_HOST_TRANSPORT=ucx, or UCX is installed), there is no MPI to compare it with.

    python -m benchmarks.hosts                  # every scenario, as root
    python -m benchmarks.hosts --scenarios cap two   # some of them

Times are of the slowest rank, and the least of some rounds: what limits is the link, and the rest is other processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))
from tests.hosts.links import Links, why_unsupported
from tests.hosts.network_test_bed import NetworkTestBed

from . import ROOT
from .hosts_world import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BUCKETS,
    COMPUTE,
    KINDS,
    OURS,
    REDUCE_SCATTER,
    RESULT_VARIABLE,
    SHARDED,
    SMALL,
    STEP,
)

MIB = 1 << 20


@dataclass(frozen=True)
class Case:
    """A measured scenario on a network-namespace test bed.

    `bound` is the least number of seconds that the network needs for it, and `bar` is the goal for perseus_like.
    """

    name: str
    hosts: int
    ranks: int  # on each host
    links: Links
    work: str
    bytes: int
    bar: float | None  # seconds, or with `relative` a multiple of the larger of computing and the wire
    rows: int = 0  # of the step's batch
    relative: bool = False

    @property
    def bound(self) -> float:
        ways = 1 if self.work in (ALLGATHER, REDUCE_SCATTER, ALLTOALL) else 2
        return ways * (self.hosts - 1) / self.hosts * self.bytes / (PAYLOAD * self.links.rate_bytes())

    def __str__(self) -> str:
        return f"{self.hosts} hosts × {self.ranks}, {self.links}: {self.work}, {self.bytes / MIB:g} MiB"


# The share of TCP's payload in the bytes of a full Ethernet frame. The rest is headers.
PAYLOAD = 1448 / 1518
GBIT = Links("1gbit")
CASES = [
    Case("cap", 2, 1, Links("1gbit", "300mbit", "0.2ms"), ALLREDUCE, 64 * MIB, 0.62),
    Case("two", 2, 1, Links("1gbit", "", "0.2ms"), ALLREDUCE, 64 * MIB, 0.62),
    Case("four", 4, 1, GBIT, ALLREDUCE, 64 * MIB, 0.95),
    Case("four-by-two", 4, 2, GBIT, ALLREDUCE, 64 * MIB, 1.0),
    Case("allgather", 4, 2, GBIT, ALLGATHER, 64 * MIB, None),
    Case("reducescatter", 4, 2, GBIT, REDUCE_SCATTER, 64 * MIB, None),
    Case("alltoall", 4, 2, GBIT, ALLTOALL, 64 * MIB, None),
    Case("small", 4, 1, Links("1gbit", "", "0.2ms"), SMALL, 128 * 16 << 10, 0.05),
    Case("two-by-two", 2, 2, Links("1gbit", "", "0.2ms"), ALLREDUCE, 64 * MIB, None),
    Case("buckets", 2, 2, Links("1gbit", "", "0.2ms"), BUCKETS, 64 * MIB, None),
    Case("kinds", 2, 2, Links("1gbit", "", "0.2ms"), KINDS, 16 * 16 << 10, None),
    Case("buckets-alone", 2, 1, Links("1gbit", "", "0.2ms"), BUCKETS, 64 * MIB, None),
    Case("kinds-alone", 2, 1, Links("1gbit", "", "0.2ms"), KINDS, 16 * 16 << 10, None),
    Case("step-wire", 2, 1, GBIT, STEP, 50 * MIB, 1.2, rows=16, relative=True),
    Case("step-two-by-two", 2, 2, GBIT, STEP, 50 * MIB, None, rows=16),
    Case("step-even", 2, 1, GBIT, STEP, 50 * MIB, None, rows=768),
    Case("step-compute", 2, 1, GBIT, STEP, 50 * MIB, 1.2, rows=2560, relative=True),
]


def run(case: Case, options: Any) -> dict[str, Any]:
    """Brings the test bed up and starts the ranks in it. Returns what rank 0 measured."""
    with (
        NetworkTestBed(case.hosts, case.links) as test_bed,
        tempfile.TemporaryDirectory(prefix="perseus-benchmark-") as folder,
    ):
        result = Path(folder, "result.json")
        # The variable is set for the ranks only, because the launcher would import its package from the source tree.
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        mpirun = ["--mpirun", options.mpirun] if options.mpirun else []
        ranks = dict.fromkeys(test_bed.hosts, case.ranks)
        # In the source tree, `-m perseus_like.launch` would find another package than the installed one.
        line = test_bed.perseusrun(ranks, *mpirun, "-x", f"PYTHONPATH={path}", folder=Path(folder))
        environment = {
            **os.environ,
            RESULT_VARIABLE: str(result),
            "OMP_NUM_THREADS": "1",
            "PERSEUS_ALLREDUCE_DISABLE_STREAM_TUNING": "1",
        }
        numbers = [str(case.bytes), str(case.rows), str(options.rounds)]
        work = [sys.executable, "-m", "benchmarks.hosts_world", case.work, *numbers]
        subprocess.run([*line, *work], env=environment, stdin=subprocess.DEVNULL, timeout=300, check=True)
        measured: dict[str, Any] = json.loads(result.read_text())
        return measured


def verdict(case: Case, measured: dict[str, Any]) -> str:
    mine = measured["seconds"][OURS]
    if case.bar is None:
        return f"{mine / case.bound:.2f} × the bound"
    if case.relative:
        value = mine / max(case.bound, measured["seconds"][COMPUTE])
        return f"{value:.2f} × the larger, ≤ {case.bar:g}: {'met' if value <= case.bar else 'NOT met'}"
    return f"{mine:.3f} s ≤ {case.bar:g} s: {'met' if mine <= case.bar else 'NOT met'}"


def as_text(case: Case, measured: dict[str, Any]) -> str:
    """Returns a row of the table in hosts.md."""
    seconds = measured["seconds"]
    others = ", ".join(f"{name} {value:.3f}" for name, value in seconds.items() if name != OURS)
    if SHARDED in measured["bytes"]:
        ours, sharded = measured["bytes"][OURS], measured["bytes"][SHARDED]
        others += f"; {SHARDED} sends {sharded / MIB:.1f} MiB, ours {ours / MIB:.1f} MiB, ratio {sharded / ours:.3f}"
    return f"| {case} | {case.bound:.3f} | {seconds[OURS]:.3f} | {others} | {verdict(case, measured)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [case.name for case in CASES]
    parser.add_argument("--scenarios", nargs="+", choices=names, default=names, help="which (default: all)")
    parser.add_argument("--rounds", type=int, default=4, help="of which the best counts (default %(default)s)")
    parser.add_argument("--mpirun", help="whose MPI (default: of this Python's prefix)")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results", help="folder of the results")
    options: Any = parser.parse_args(arguments)
    chosen = [case for case in CASES if case.name in options.scenarios]
    for case in chosen:
        if (reason := why_unsupported(case.links)) is not None:
            print(f"no network-namespace test bed here: {reason}", file=sys.stderr)
            return 77
    results: list[dict[str, Any]] = []
    for case in chosen:
        measured = run(case, options)
        if not results:
            print(
                f"{measured['transport']}\n\n| scenario | bound, s | ours, s | others, s | bar |\n|---|---|---|---|---|"
            )
        print(as_text(case, measured), flush=True)
        results.append({"scenario": case.name, "what": str(case), "bound": case.bound, **measured})
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "hosts.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
