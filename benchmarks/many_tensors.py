"""Many tensors at once, as a backward pass hands them over: 154 like ResNet-50's, and 300 of 1 KiB.

python -m benchmarks.many_tensors -np 2
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from . import harness, peers
from .harness import Contender, World, resnet_shapes
from .record import Bar, Result, Row, publish, ratio

OURS, GROUPED, ARENA = "ours", "ours, grouped", "ours, arena"
GLOO, GLOO_BUCKETS, MPI, HOROVOD = "gloo", "gloo, DDP's buckets", "MPI", "Horovod"
COPY = "streaming copy"
RESNET, TINY = "154 like ResNet-50, 143 MiB", "300 of 1 KiB"
DDP_BUCKET_BYTES = 25 << 20

Tensors = list[torch.Tensor]


def ours(tensors: Tensors, tag: str) -> Callable[[], object]:
    import perseus_like.torch as hvd

    named = [(tensor, f"{tag}.{number}") for number, tensor in enumerate(tensors)]

    def run() -> None:
        handles = [hvd.allreduce_async_(tensor, op=hvd.Sum, name=name) for tensor, name in named]
        for handle in handles:
            hvd.synchronize(handle)

    return run


def ours_grouped(tensors: Tensors, tag: str) -> Callable[[], object]:
    import perseus_like.torch as hvd

    return lambda: hvd.synchronize(hvd.grouped_allreduce_async_(tensors, op=hvd.Sum, name=f"{tag}.grouped"))


def gloo(tensors: Tensors) -> Callable[[], object]:
    def run() -> None:
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()

    return run


def ddp_buckets(tensors: Tensors) -> list[Tensors]:
    """Divides tensors into buckets of DDP's size, in the order of a backward pass."""
    buckets: list[Tensors] = [[]]
    filled = 0
    for tensor in reversed(tensors):
        count = tensor.numel() * tensor.element_size()
        if buckets[-1] and filled + count > DDP_BUCKET_BYTES:
            buckets.append([])
            filled = 0
        buckets[-1].append(tensor)
        filled += count
    return buckets


def gloo_in_buckets(tensors: Tensors) -> Callable[[], object]:
    """Returns a function that packs, reduces and unpacks the tensors, as DDP does."""
    buckets = ddp_buckets(tensors)
    flats = [torch.empty(sum(tensor.numel() for tensor in bucket)) for bucket in buckets]

    def run() -> None:
        works = []
        for bucket, flat in zip(buckets, flats, strict=True):
            torch.cat([tensor.view(-1) for tensor in bucket], out=flat)
            works.append(dist.all_reduce(flat, async_op=True))
        for bucket, flat, work in zip(buckets, flats, works, strict=True):
            work.wait()
            parts = torch.split_with_sizes(flat, [tensor.numel() for tensor in bucket])
            torch._foreach_copy_([tensor.view(-1) for tensor in bucket], list(parts))

    return run


def plain_copy(tensors: Tensors) -> Callable[[], object]:
    """Returns a function that copies the same bytes, which shows the speed of the memory."""
    from perseus_like import _core

    pairs = [(torch.empty_like(tensor).fill_(0), tensor) for tensor in tensors]

    def run() -> None:
        for to, source in pairs:
            _core.copy(to.data_ptr(), source.data_ptr(), source.numel() * source.element_size(), True)

    return run


def horovod(module: Any, tensors: Tensors, tag: str) -> Callable[[], object]:
    named = [(tensor, f"{tag}.{number}") for number, tensor in enumerate(tensors)]

    def run() -> None:
        handles = [module.allreduce_async_(tensor, op=module.Sum, name=name) for tensor, name in named]
        for handle in handles:
            module.synchronize(handle)

    return run


def one_by_one(reducer: harness.Reducer, tensors: Tensors) -> Callable[[], object]:
    """Returns a function that reduces the tensors by a peer whose calls block."""
    calls = [reducer(tensor) for tensor in tensors]

    def run() -> None:
        for call in calls:
            call()

    return run


def contenders(
    shapes: Sequence[tuple[int, ...]], tag: str, other: Any, mpi: harness.Reducer | None = None
) -> list[Contender]:
    import perseus_like.torch as hvd

    private = [torch.empty(shape).fill_(0) for shape in shapes]
    arena = [hvd.empty(shape).fill_(0) for shape in shapes]
    made = [
        Contender.of(OURS, ours(private, f"{tag}.private")),
        Contender.of(GROUPED, ours_grouped(private, f"{tag}.private")),
        Contender.of(ARENA, ours(arena, f"{tag}.arena")),
        Contender.of(GLOO, gloo(private)),
        Contender.of(GLOO_BUCKETS, gloo_in_buckets(private)),
        Contender.of(COPY, plain_copy(private)),
    ]
    if mpi is not None:
        made.append(Contender.of(MPI, one_by_one(mpi, private)))
    if other is not None:
        made.append(Contender.of(HOROVOD, horovod(other, private, tag)))
    return made


def check(world: World, shapes: Sequence[tuple[int, ...]]) -> None:
    tensors = [torch.full(shape, float(world.rank + number)) for number, shape in enumerate(shapes)]
    ours(tensors, "check")()
    sum_of_ranks = world.size * (world.size - 1) // 2
    for number, tensor in enumerate(tensors):
        if not torch.all(tensor == float(sum_of_ranks + world.size * number)):
            raise AssertionError(f"tensor {number} of {len(shapes)}: wrong sum on rank {world.rank}")


def bars(result: Result) -> list[Bar]:
    made = []
    if (row := result.row(RESNET)) is not None:
        mine, quantity = row.median(OURS), "faster than"
        gloo_time, horovod_time = row.best((GLOO, GLOO_BUCKETS)), row.median(HOROVOD)
        faster = ratio(horovod_time, mine)
        made.append(Bar(RESNET, f"{quantity} Horovod", "≥", 4.5, faster, recorded="Horovod 94 ms"))
        made.append(Bar(RESNET, f"{quantity} gloo", "≥", 8, ratio(gloo_time, mine), recorded="DDP 161 ms"))
    if (row := result.row(TINY)) is not None:
        mine = row.median(OURS)
        made.append(Bar(TINY, "time", "≤", 0.8, None if mine is None else mine * 1e3, "ms"))
    return made if result.world.size == 2 and not result.quick else []


def on_every_rank(options: Any) -> None:
    world = World()
    peers.start_gloo(world)
    missing: dict[str, str] = {}
    other = None
    try:
        other = peers.start_horovod(world)
    except harness.Missing as reason:
        missing[HOROVOD] = str(reason)
    result = Result("many_tensors", "Many tensors asynchronously", world, (OURS, GROUPED, ARENA), missing=missing)
    result.quick = options.quick
    work: dict[str, list[tuple[int, ...]]] = {RESNET: resnet_shapes(), TINY: [(256,)] * 300}
    if options.quick:
        work = {"154 of a narrow network": resnet_shapes(2), "20 of 1 KiB": [(256,)] * 20}
    for number, (name, shapes) in enumerate(work.items()):
        check(world, shapes)
        found = harness.measure(world, contenders(shapes, str(number), other), harness.budget_of(options))
        result.rows.append(Row(name, found))
    result.bars = bars(result)
    publish(result, options.output)
    world.barrier()
    peers.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    options = harness.parser("Many tensors asynchronously, against gloo and Horovod.", seconds=12).parse_args(arguments)
    if harness.in_world():
        on_every_rank(options)
        return 0
    return harness.start_world("benchmarks.many_tensors", arguments, options)


if __name__ == "__main__":
    sys.exit(main())
