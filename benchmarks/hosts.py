"""Several hosts, which are network namespaces with slow links: ours beside the MPI alone, and the least time possible.

    python -m benchmarks.hosts                       # every scenario, as root
    python -m benchmarks.hosts --scenarios cap two   # some of them
    python -m benchmarks.hosts --program benchmarks.tensor_parallel --hosts 2 --ranks 1    # another benchmark

If this library uses UCX (PERSEUS_HOST_TRANSPORT=ucx, or UCX is installed), there is no MPI to compare it with. Times
are of the slowest rank, and the least of some rounds: what limits is the link, and the rest is other processes. Another
benchmark runs on hosts whose links have no limits, and UCX connects them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import ROOT
from .harness import MIB, Call, search_path
from .training_step import perceptron, step

sys.path.append(str(ROOT))
from tests.hosts.links import Links, why_unsupported
from tests.hosts.network_test_bed import NetworkTestBed

RESULT_VARIABLE = "PERSEUS_HOSTS_RESULT"
ALLREDUCE, SMALL, STEP = "allreduce", "tensors of 16 KiB one by one", "training step"
ALLGATHER, REDUCE_SCATTER, ALLTOALL = "allgather", "reducescatter", "alltoall"
BUCKETS, KINDS = "buckets of 8 MiB at once", "tensors of 16 KiB of 16 kinds at once"
OURS, MPI, BY_HAND, MPI_ONE_BY_ONE = "ours", "the MPI alone", "fused by hand", "the MPI one by one"
COMPUTE, SHARDED = "computing", "one copy per host"
SMALL_BYTES, BUCKET_BYTES = 16 << 10, 8 << 20
SENT_BYTES = Path("/sys/class/net/eth0/statistics/tx_bytes")  # of this host, which is a network namespace
PAYLOAD = 1448 / 1518  # the share of TCP's payload in the bytes of a full Ethernet frame; the rest is headers
Contenders = dict[str, Call]


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


GBIT, SLOW = Links("1gbit"), Links("1gbit", "", "0.2ms")
CASES = [
    Case("cap", 2, 1, Links("1gbit", "300mbit", "0.2ms"), ALLREDUCE, 64 * MIB, 0.62),
    Case("two", 2, 1, SLOW, ALLREDUCE, 64 * MIB, 0.62),
    Case("four", 4, 1, GBIT, ALLREDUCE, 64 * MIB, 0.95),
    Case("four-by-two", 4, 2, GBIT, ALLREDUCE, 64 * MIB, 1.0),
    Case("allgather", 4, 2, GBIT, ALLGATHER, 64 * MIB, None),
    Case("reducescatter", 4, 2, GBIT, REDUCE_SCATTER, 64 * MIB, None),
    Case("alltoall", 4, 2, GBIT, ALLTOALL, 64 * MIB, None),
    Case("small", 4, 1, SLOW, SMALL, 128 * SMALL_BYTES, 0.05),
    Case("two-by-two", 2, 2, SLOW, ALLREDUCE, 64 * MIB, None),
    Case("buckets", 2, 2, SLOW, BUCKETS, 64 * MIB, None),
    Case("kinds", 2, 2, SLOW, KINDS, 16 * SMALL_BYTES, None),
    Case("buckets-alone", 2, 1, SLOW, BUCKETS, 64 * MIB, None),
    Case("kinds-alone", 2, 1, SLOW, KINDS, 16 * SMALL_BYTES, None),
    Case("step-wire", 2, 1, GBIT, STEP, 50 * MIB, 1.2, rows=16, relative=True),
    Case("step-two-by-two", 2, 2, GBIT, STEP, 50 * MIB, None, rows=16),
    Case("step-even", 2, 1, GBIT, STEP, 50 * MIB, None, rows=768),
    Case("step-compute", 2, 1, GBIT, STEP, 50 * MIB, 1.2, rows=2560, relative=True),
]

# --- on each rank ----------------------------------------------------------------------------------------------------


def of_one_tensor(hvd: Any, comm: Any, work: str, count: int) -> Contenders:
    """Returns the contenders of a verb. All ranks, or those of a host for an alltoall, have `count` bytes together."""
    whole, part = torch.ones(count // 4), torch.ones(count // 4 // hvd.size())
    of_host = torch.ones(count // 4 // hvd.local_size())
    target = torch.ones(count // 4).numpy()
    ours: Contenders = {
        ALLREDUCE: lambda: hvd.allreduce_(whole, op=hvd.Average, name="large"),
        ALLGATHER: lambda: hvd.allgather(part, name="part"),
        REDUCE_SCATTER: lambda: hvd.reducescatter(whole, op=hvd.Sum, name="whole"),
        ALLTOALL: lambda: hvd.alltoall(of_host, name="mine"),
    }
    theirs: Contenders = {
        ALLREDUCE: lambda: comm.Allreduce(whole.numpy(), target),
        ALLGATHER: lambda: comm.Allgather(part.numpy(), target),
        REDUCE_SCATTER: lambda: comm.Reduce_scatter_block(whole.numpy(), target[: len(part)]),
        ALLTOALL: lambda: comm.Alltoall(of_host.numpy(), target[: len(of_host)]),
    }
    return {OURS: ours[work], MPI: theirs[work]}


def of_many_tensors(hvd: Any, comm: Any, work: str, count: int) -> Contenders:
    """Returns the contenders that reduce several tensors at once. Each tensor has its own operation."""
    if work == KINDS:  # no two of these tensors can be fused
        dtypes = (torch.float32, torch.float64, torch.int32, torch.int64)
        kinds = [(dtype, op) for op in ("Sum", "Max", "Min", "Product") for dtype in dtypes]
        tensors = [(torch.ones(SMALL_BYTES // dtype.itemsize, dtype=dtype), op) for dtype, op in kinds]
    else:
        each, op = (SMALL_BYTES, "Average") if work == SMALL else (BUCKET_BYTES, "Sum")
        tensors = [(torch.ones(each // 4), op) for _ in range(count // each)]
    whole, fused = (torch.ones(count // 4).numpy() for _ in range(2))
    results = [tensor.numpy().copy() for tensor, _ in tensors]

    def ours() -> None:
        handles = [
            hvd.allreduce_async_(tensor, op=getattr(hvd, op), name=f"t{i}") for i, (tensor, op) in enumerate(tensors)
        ]
        for handle in handles:
            hvd.synchronize(handle)

    def one_by_one() -> None:
        from mpi4py import MPI as mpi  # noqa: N811

        ops = {"Sum": mpi.SUM, "Average": mpi.SUM, "Max": mpi.MAX, "Min": mpi.MIN, "Product": mpi.PROD}
        for (tensor, op), result in zip(tensors, results, strict=True):
            comm.Allreduce(tensor.numpy(), result, op=ops[op])

    found: Contenders = {OURS: ours, MPI_ONE_BY_ONE: one_by_one}
    if work == SMALL:
        found[BY_HAND] = lambda: comm.Allreduce(whole, fused)
    return found


def of_step(hvd: Any, count: int, rows: int) -> Contenders:
    """Returns the contenders that train a perceptron with `count` bytes of weights, in layers of 4 MiB."""
    (mine, data), (shared, _), (alone, _) = (perceptron(count // (4 << 20), 1024, rows, bias=False) for _ in range(3))
    hvd.broadcast_parameters(mine.state_dict(), root_rank=0)
    sgd = torch.optim.SGD
    optimizer = hvd.DistributedOptimizer(sgd(mine.parameters(), lr=1e-3), mine.named_parameters())
    return {
        OURS: step(mine, optimizer, data),
        SHARDED: step(shared, hvd.ZeroRedundancyOptimizer(shared.parameters(), sgd, lr=1e-3), data),
        COMPUTE: step(alone, sgd(alone.parameters(), lr=1e-3), data),
    }


def measure(hvd: Any, contenders: Contenders, rounds: int) -> dict[str, dict[str, float]]:
    """Returns the seconds of each contender's best round, by the clock of the slowest rank, and its least bytes.

    Bytes are those that all hosts have sent, with the headers.
    """

    def of_all(number: float, op: Any) -> float:
        return float(hvd.allreduce(torch.tensor(number, dtype=torch.float64), op=op, name="number"))

    def sent_bytes() -> float:
        return of_all(int(SENT_BYTES.read_text()) if hvd.local_rank() == 0 else 0, hvd.Sum)

    best, least = ({name: float("inf") for name in contenders} for _ in range(2))
    for number in range(rounds + 2):
        for name, run in contenders.items():
            before = sent_bytes()
            hvd.barrier()
            begin = time.perf_counter()
            run()
            seconds = of_all(time.perf_counter() - begin, hvd.Max)
            if number >= 2:  # the first two find out the order of gradients, and make connections
                best[name] = min(best[name], seconds)
                least[name] = min(least[name], sent_bytes() - before)
    return {"seconds": best, "bytes": least}


def on_every_rank(case: Case, rounds: int) -> None:
    import perseus_like.torch as hvd
    from perseus_like import _core

    torch.set_num_threads(1)
    hvd.init()
    comm: Any = None
    if _core.description().startswith("mpi"):
        from mpi4py import MPI as mpi  # noqa: N811

        comm = mpi.COMM_WORLD
    if case.work == STEP:
        contenders = of_step(hvd, case.bytes, case.rows)
    else:
        of_work = of_many_tensors if case.work in (SMALL, BUCKETS, KINDS) else of_one_tensor
        contenders = of_work(hvd, comm, case.work, case.bytes)
        if comm is None:
            contenders = {OURS: contenders[OURS]}
    measured = measure(hvd, contenders, rounds)
    if hvd.rank() == 0:
        Path(os.environ[RESULT_VARIABLE]).write_text(json.dumps({"transport": _core.description(), **measured}))
    hvd.shutdown()


# --- the hosts -------------------------------------------------------------------------------------------------------


def run(case: Case, options: Any) -> dict[str, Any]:
    """Brings the test bed up and starts the ranks in it. Returns what rank 0 measured."""
    with (
        NetworkTestBed(case.hosts, case.links) as test_bed,
        tempfile.TemporaryDirectory(prefix="perseus-benchmark-") as folder,
    ):
        result = Path(folder, "result.json")
        mpirun = ["--mpirun", options.mpirun] if options.mpirun else []
        ranks = dict.fromkeys(test_bed.hosts, case.ranks)
        # In the source tree, `-m perseus_like.launch` would find another package than the installed one.
        line = test_bed.perseusrun(ranks, *mpirun, "-x", f"PYTHONPATH={search_path()}", folder=Path(folder))
        own = {"OMP_NUM_THREADS": "1", "PERSEUS_ALLREDUCE_DISABLE_STREAM_TUNING": "1", RESULT_VARIABLE: str(result)}
        work = [sys.executable, "-m", "benchmarks.hosts", "--scenarios", case.name, "--rounds", str(options.rounds)]
        subprocess.run([*line, *work], env={**os.environ, **own}, stdin=subprocess.DEVNULL, timeout=300, check=True)
        measured: dict[str, Any] = json.loads(result.read_text())
        return measured


def run_program(options: Any) -> int:
    """Runs another benchmark with its ranks on several hosts."""
    with NetworkTestBed(options.hosts) as test_bed:
        line = test_bed.perseusrun(dict.fromkeys(test_bed.hosts, options.ranks), "--no-prefix", folder=ROOT)
        # vLLM itself finds its address only if there is a route to the Internet.
        chosen = {"PERSEUS_HOST_TRANSPORT": "ucx", "VLLM_HOST_IP": test_bed.address(test_bed.hosts[0])}
        environment = {**chosen, **os.environ, "OMP_NUM_THREADS": "1"}
        command = [*line, sys.executable, "-m", *options.program]
        return subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False).returncode


def as_text(case: Case, measured: dict[str, Any]) -> str:
    """Returns a row of the table in hosts.md."""
    seconds, sent = measured["seconds"], measured["bytes"]
    mine = seconds[OURS]
    others = ", ".join(f"{name} {value:.3f}" for name, value in seconds.items() if name != OURS)
    if SHARDED in sent:
        ratio = sent[SHARDED] / sent[OURS]
        others += f"; {SHARDED} sends {sent[SHARDED] / MIB:.1f} MiB, ours {sent[OURS] / MIB:.1f} MiB, ratio {ratio:.3f}"
    value, unit = (mine / max(case.bound, seconds[COMPUTE]), "× the larger") if case.relative else (mine, "s")
    verdict = f"{mine / case.bound:.2f} × the bound"
    if case.bar is not None:
        verdict = f"{value:.3f} {unit} ≤ {case.bar:g}: {'met' if value <= case.bar else 'NOT met'}"
    return f"| {case} | {case.bound:.3f} | {mine:.3f} | {others} | {verdict} |"


def run_all(cases: list[Case], options: Any) -> None:
    results: list[dict[str, Any]] = []
    for case in cases:
        measured = run(case, options)
        if not results:
            print(measured["transport"])
            print("\n| scenario | bound, s | ours, s | others, s | bar |\n|---|---|---|---|---|")
        print(as_text(case, measured), flush=True)
        results.append({"scenario": case.name, "what": str(case), "bound": case.bound, **measured})
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "hosts.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [case.name for case in CASES]
    parser.add_argument("--scenarios", nargs="+", choices=names, default=names, help="which (default: all)")
    parser.add_argument("--rounds", type=int, default=4, help="of which the best counts (default %(default)s)")
    parser.add_argument("--mpirun", help="whose MPI (default: of this Python's prefix)")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results", help="folder of the results")
    parser.add_argument("--hosts", type=int, default=2, help="number of hosts of --program (default %(default)s)")
    parser.add_argument("--ranks", type=int, default=1, help="ranks on each of them (default %(default)s)")
    parser.add_argument("--program", nargs=argparse.REMAINDER, help="another benchmark and its arguments; comes last")
    options: Any = parser.parse_args()
    chosen = [case for case in CASES if case.name in options.scenarios]
    if RESULT_VARIABLE in os.environ:
        on_every_rank(chosen[0], options.rounds)
        return 0
    for links in [None] if options.program else [case.links for case in chosen]:
        if (reason := why_unsupported(links)) is not None:
            print(f"no network-namespace test bed here: {reason}", file=sys.stderr)
            return 77
    if options.program:
        return run_program(options)
    run_all(chosen, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
