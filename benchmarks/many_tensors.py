"""Many tensors at once, as a backward pass hands them over: 154 like ResNet-50's, and 300 of 1 KiB.

python -m benchmarks.many_tensors -np 2
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

import perseus_like.torch as hvd
from perseus_like import _core

from . import harness, peers
from .harness import Call, Contender, Result, World, ratio, resnet_shapes, scaled
from .report import STREAMING

OURS, GROUPED, ARENA = ALL_OURS = "ours", "ours, grouped", "ours, arena"
GLOO, GLOO_BUCKETS, MPI, HOROVOD = "gloo", "gloo, DDP's buckets", "MPI", "Horovod"
RESNET, TINY = "154 like ResNet-50, 143 MiB", "300 of 1 KiB"
DDP_BUCKET_BYTES = 25 << 20

Tensors = list[torch.Tensor]


def one_by_one(module: Any, tensors: Tensors, tag: str) -> Call:
    """Returns a function that starts an allreduce of each tensor and then waits for all, by ours or by Horovod."""
    named = [(tensor, f"{tag}.{number}") for number, tensor in enumerate(tensors)]

    def run() -> None:
        handles = [module.allreduce_async_(tensor, op=module.Sum, name=name) for tensor, name in named]
        for handle in handles:
            module.synchronize(handle)

    return run


def gloo(tensors: Tensors) -> None:
    for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
        work.wait()


def ddp_buckets(tensors: Tensors) -> list[Tensors]:
    """Divides tensors into buckets of DDP's size, in the order of a backward pass."""
    buckets: list[Tensors] = [[]]
    filled = 0
    for tensor in reversed(tensors):
        if buckets[-1] and filled + tensor.nbytes > DDP_BUCKET_BYTES:
            buckets.append([])
            filled = 0
        buckets[-1].append(tensor)
        filled += tensor.nbytes
    return buckets


def gloo_in_buckets(tensors: Tensors) -> Call:
    """Returns a function that packs, reduces and unpacks the tensors, as DDP does."""
    buckets = [[tensor.view(-1) for tensor in bucket] for bucket in ddp_buckets(tensors)]
    flats = [torch.empty(sum(len(tensor) for tensor in bucket)) for bucket in buckets]

    def run() -> None:
        works = []
        for bucket, flat in zip(buckets, flats, strict=True):
            torch.cat(bucket, out=flat)
            works.append(dist.all_reduce(flat, async_op=True))
        for bucket, flat, work in zip(buckets, flats, works, strict=True):
            work.wait()
            torch._foreach_copy_(bucket, list(torch.split_with_sizes(flat, [len(tensor) for tensor in bucket])))

    return run


def contenders(shapes: Sequence[tuple[int, ...]], tag: str, others: dict[str, Any]) -> list[Contender]:
    private = [torch.empty(shape).fill_(0) for shape in shapes]
    arena = [hvd.empty(shape).fill_(0) for shape in shapes]
    pairs = [(torch.empty_like(tensor).fill_(0), tensor) for tensor in private]

    def copy() -> None:
        for to, source in pairs:
            _core.copy(to.data_ptr(), source.data_ptr(), source.nbytes, True)

    made: dict[str, Call] = {
        OURS: one_by_one(hvd, private, f"{tag}.private"),
        GROUPED: lambda: hvd.synchronize(hvd.grouped_allreduce_async_(private, op=hvd.Sum, name=f"{tag}.grouped")),
        ARENA: one_by_one(hvd, arena, f"{tag}.arena"),
        GLOO: lambda: gloo(private),
        GLOO_BUCKETS: gloo_in_buckets(private),
        STREAMING: copy,
    }
    if MPI in others:
        calls = [others[MPI](tensor) for tensor in private]
        made[MPI] = lambda: [call() for call in calls]
    if HOROVOD in others:
        made[HOROVOD] = one_by_one(others[HOROVOD], private, tag)
    return [Contender.of(name, run) for name, run in made.items()]


def check(world: World, shapes: Sequence[tuple[int, ...]]) -> None:
    tensors = [torch.full(shape, float(world.rank + number)) for number, shape in enumerate(shapes)]
    one_by_one(hvd, tensors, "check")()
    sum_of_ranks = world.size * (world.size - 1) // 2
    for number, tensor in enumerate(tensors):
        if not torch.all(tensor == float(sum_of_ranks + world.size * number)):
            raise AssertionError(f"tensor {number} of {len(shapes)}: wrong sum on rank {world.rank}")


def on_every_rank(options: Any) -> None:
    result = Result("many_tensors", "Many tensors asynchronously", World(), options, ALL_OURS)
    starts: dict[str, Any] = {GLOO: peers.start_gloo, HOROVOD: peers.start_horovod}
    if options.placement:
        starts[MPI] = peers.PEERS[MPI]
    others = peers.start(result, starts)
    work: dict[str, list[tuple[int, ...]]] = {RESNET: resnet_shapes(), TINY: [(256,)] * 300}
    if options.quick:
        work = {"154 of a narrow network": resnet_shapes(2), "20 of 1 KiB": [(256,)] * 20}
    for number, (name, shapes) in enumerate(work.items()):
        check(result.world, shapes)
        result.measure(name, contenders(shapes, str(number), others))
    if (mine := result.best(RESNET, OURS)) is not None:
        by_gloo = ratio(result.best(RESNET, GLOO, GLOO_BUCKETS), mine)
        by_horovod = ratio(result.best(RESNET, HOROVOD), mine)
        result.bar(RESNET, "faster than Horovod", "≥", 4.5, by_horovod, recorded="Horovod 94 ms")
        result.bar(RESNET, "faster than gloo", "≥", 8, by_gloo, recorded="DDP 161 ms")
    result.bar(TINY, "time", "≤", 0.8, scaled(result.best(TINY, OURS), 1e3), "ms")
    result.publish()


if __name__ == "__main__":
    harness.main(on_every_rank, seconds=12, with_mpi=lambda options: bool(options.placement) and peers.has_mpi4py())
