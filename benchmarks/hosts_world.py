"""The program of each rank of benchmarks.hosts: one kind of work, alternately by perseus_like and by the MPI alone."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

RESULT_VARIABLE = "PERSEUS_HOSTS_RESULT"
ALLREDUCE, SMALL, STEP = "allreduce", "tensors of 16 KiB one by one", "training step"
ALLGATHER, REDUCE_SCATTER, ALLTOALL = "allgather", "reducescatter", "alltoall"
BUCKETS, KINDS = "buckets of 8 MiB at once", "tensors of 16 KiB of 16 kinds at once"
OURS, MPI, BY_HAND, MPI_ONE_BY_ONE, COMPUTE, SHARDED = (
    "ours",
    "the MPI alone",
    "fused by hand",
    "the MPI one by one",
    "computing",
    "one copy per host",
)
SMALL_BYTES = 16 << 10
BUCKET_BYTES = 8 << 20
SENT_BYTES = Path("/sys/class/net/eth0/statistics/tx_bytes")  # of this host, which is a network namespace
Contenders = dict[str, Callable[[], object]]


def allreduce(hvd: Any, comm: Any, count: int) -> Contenders:
    mine, theirs = torch.ones(count // 4), torch.ones(count // 4).numpy()
    result = theirs.copy()
    return {
        OURS: lambda: hvd.allreduce_(mine, op=hvd.Average, name="large"),
        MPI: lambda: comm.Allreduce(theirs, result),
    }


def allgather(hvd: Any, comm: Any, count: int) -> Contenders:
    """Returns the contenders of an allgather with a result of `count` bytes."""
    part = torch.ones(count // 4 // hvd.size())
    whole = torch.ones(count // 4).numpy()
    return {
        OURS: lambda: hvd.allgather(part, name="part"),
        MPI: lambda: comm.Allgather(part.numpy(), whole),
    }


def reduce_scatter(hvd: Any, comm: Any, count: int) -> Contenders:
    whole = torch.ones(count // 4)
    part = torch.ones(count // 4 // hvd.size()).numpy()
    return {
        OURS: lambda: hvd.reducescatter(whole, op=hvd.Sum, name="whole"),
        MPI: lambda: comm.Reduce_scatter_block(whole.numpy(), part),
    }


def alltoall(hvd: Any, comm: Any, count: int) -> Contenders:
    """Returns the contenders of an alltoall in which the ranks of a host have `count` bytes together."""
    mine = torch.ones(count // 4 // hvd.local_size())
    result = mine.clone().numpy()
    return {
        OURS: lambda: hvd.alltoall(mine, name="mine"),
        MPI: lambda: comm.Alltoall(mine.numpy(), result),
    }


def small(hvd: Any, comm: Any, count: int) -> Contenders:
    tensors = [torch.ones(SMALL_BYTES // 4) for _ in range(count // SMALL_BYTES)]
    whole = torch.ones(count // 4).numpy()
    result = whole.copy()

    def ours() -> None:
        handles = [hvd.allreduce_async_(tensor, op=hvd.Average, name=f"s{i}") for i, tensor in enumerate(tensors)]
        for handle in handles:
            hvd.synchronize(handle)

    def one_by_one() -> None:
        for tensor in tensors:
            comm.Allreduce(tensor.numpy(), result[: SMALL_BYTES // 4])

    return {OURS: ours, BY_HAND: lambda: comm.Allreduce(whole, result), MPI_ONE_BY_ONE: one_by_one}


def at_once(hvd: Any, comm: Any, tensors: list[tuple[torch.Tensor, Any]]) -> Contenders:
    """Returns the contenders that reduce several tensors at once. Each tensor has its own operation."""
    results = [tensor.numpy().copy() for tensor, _ in tensors]

    def ours() -> None:
        handles = [
            hvd.allreduce_async_(tensor, op=getattr(hvd, op), name=f"t{i}") for i, (tensor, op) in enumerate(tensors)
        ]
        for handle in handles:
            hvd.synchronize(handle)

    def one_by_one() -> None:
        from mpi4py import MPI as mpi  # noqa: N811

        ops = {"Sum": mpi.SUM, "Max": mpi.MAX, "Min": mpi.MIN, "Product": mpi.PROD}
        for (tensor, op), result in zip(tensors, results, strict=True):
            comm.Allreduce(tensor.numpy(), result, op=ops[op])

    return {OURS: ours, MPI_ONE_BY_ONE: one_by_one}


def buckets(hvd: Any, comm: Any, count: int) -> Contenders:
    return at_once(hvd, comm, [(torch.zeros(BUCKET_BYTES // 4), "Sum") for _ in range(count // BUCKET_BYTES)])


def kinds(hvd: Any, comm: Any, count: int) -> Contenders:
    """Returns the contenders that reduce tensors of which no two can be fused."""
    dtypes = (torch.float32, torch.float64, torch.int32, torch.int64)
    all_kinds = [(dtype, op) for op in ("Sum", "Max", "Min", "Product") for dtype in dtypes]
    each = count // len(all_kinds)
    return at_once(hvd, comm, [(torch.ones(each // dtype.itemsize, dtype=dtype), op) for dtype, op in all_kinds])


VERBS: dict[str, Callable[[Any, Any, int], Contenders]] = {
    ALLREDUCE: allreduce,
    ALLGATHER: allgather,
    REDUCE_SCATTER: reduce_scatter,
    ALLTOALL: alltoall,
    SMALL: small,
    BUCKETS: buckets,
    KINDS: kinds,
}


def step(hvd: Any, count: int, rows: int) -> Contenders:
    """Returns the contenders that train a perceptron with `count` bytes of weights, in layers of 4 MiB."""
    width, layers = 1024, count // (4 << 20)
    data = torch.randn(rows, width)

    def model() -> nn.Module:
        return nn.Sequential(*(nn.Sequential(nn.Linear(width, width, bias=False), nn.ReLU()) for _ in range(layers)))

    def trained(model: nn.Module, optimizer: Any) -> Callable[[], object]:
        def run() -> None:
            optimizer.zero_grad()
            torch.autograd.backward(model(data).square().mean())
            optimizer.step()

        return run

    mine, shared, alone = model(), model(), model()
    hvd.broadcast_parameters(mine.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(mine.parameters(), lr=1e-3), mine.named_parameters())
    return {
        OURS: trained(mine, optimizer),
        SHARDED: trained(shared, hvd.ZeroRedundancyOptimizer(shared.parameters(), torch.optim.SGD, lr=1e-3)),
        COMPUTE: trained(alone, torch.optim.SGD(alone.parameters(), lr=1e-3)),
    }


def measure(hvd: Any, contenders: Contenders, rounds: int) -> dict[str, dict[str, float]]:
    """Returns the seconds of each contender's best round, by the clock of the slowest rank, and its least bytes.

    Bytes are those that all hosts have sent, with the headers.
    """

    def of_all(number: float, op: Any) -> float:
        return float(hvd.allreduce(torch.tensor(number, dtype=torch.float64), op=op, name="number"))

    def sent_bytes() -> float:
        return of_all(int(SENT_BYTES.read_text()) if hvd.local_rank() == 0 else 0, hvd.Sum)

    best = dict.fromkeys(contenders, float("inf"))
    least = dict.fromkeys(contenders, float("inf"))
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


def main(work: str, count: int, rows: int, rounds: int) -> None:
    import perseus_like.torch as hvd
    from perseus_like import _core

    torch.set_num_threads(1)
    hvd.init()
    if work == STEP:
        contenders = step(hvd, count, rows)
    elif _core.description().startswith("mpi"):
        from mpi4py import MPI as mpi  # noqa: N811

        contenders = VERBS[work](hvd, mpi.COMM_WORLD, count)
    else:
        contenders = {OURS: VERBS[work](hvd, None, count)[OURS]}
    measured = measure(hvd, contenders, rounds)
    if hvd.rank() == 0:
        Path(os.environ[RESULT_VARIABLE]).write_text(json.dumps({"transport": _core.description(), **measured}))
    hvd.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
