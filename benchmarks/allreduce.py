"""Measures the allreduce of one float32 tensor by size: this library, its peers, and plain copies.

    python -m benchmarks.allreduce -np 2

This library reduces in place by `hvd.allreduce_`, in the arena and in private memory. Peers write to another tensor,
because that is their fastest way.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

import perseus_like.torch as hvd
from perseus_like import _core

from . import harness, peers
from .harness import MIB, Contender, Result, World, ratio, scaled
from .report import COPIES, MEMCPY, STREAMING

ARENA, PRIVATE = OURS = "ours, arena", "ours, private"
# This contender moves as many bytes between ranks as a private tensor does, but almost none to and from memory.
EXCHANGE, EXCHANGED_FLOATS = "exchange alone", 1 << 16
KIB = 1 << 10
SIZES = (4, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
PINNED_SIZES = (*SIZES, 256 * MIB)
FEW_SIZES = (4, 64 * KIB, 4 * MIB, 64 * MIB)  # for placements that are compared with the usual one


def size_name(count: int) -> str:
    if count >= MIB:
        return f"{count // MIB} MiB"
    return f"{count // KIB} KiB" if count >= KIB else f"{count} B"


class Memory:
    """Has tensors of the largest size. Each row of the table uses the first elements of them."""

    def __init__(self, count: int) -> None:
        self.private, self.out = (torch.empty(count).fill_(0) for _ in range(2))
        self.arena = hvd.empty(count).fill_(0)


def ours(tensor: torch.Tensor, name: str) -> Callable[[], object]:
    return lambda: hvd.allreduce_(tensor, op=hvd.Sum, name=name)


def contenders(memory: Memory, count: int, reducers: dict[str, peers.Reducer]) -> list[Contender]:
    arena, private, out = memory.arena[:count], memory.private[:count], memory.out[:count]
    size, addresses = 4 * count, (out.data_ptr(), private.data_ptr())
    made = [
        Contender.of(ARENA, ours(arena, f"arena.{count}")),
        Contender.of(PRIVATE, ours(private, f"private.{count}")),
        *(Contender.of(name, reducer(private)) for name, reducer in reducers.items()),
        Contender.of(MEMCPY, lambda: ctypes.memmove(*addresses, size)),
        Contender.of(STREAMING, lambda: _core.copy(*addresses, size, True)),
    ]
    if size >= 16 * MIB:
        # A group of one small tensor, many times. The tensor stays in the core's cache.
        group = [private[:EXCHANGED_FLOATS]] * (count // EXCHANGED_FLOATS)
        name = f"exchange.{count}"
        made.append(Contender.of(EXCHANGE, lambda: hvd.grouped_allreduce_(group, op=hvd.Sum, name=name)))
    return made


def barriers(reducers: dict[str, peers.Reducer]) -> list[Contender]:
    made = [Contender.of("ours", lambda: hvd.barrier())]
    if "gloo" in reducers:
        made.append(Contender.of("gloo", lambda: dist.barrier()))
    if "MPI" in reducers:
        from mpi4py import MPI

        made.append(Contender.of("MPI", MPI.COMM_WORLD.Barrier))
    return made


def check(world: World, memory: Memory) -> None:
    """Raises AssertionError unless this library returns the sum of all ranks' tensors."""
    count = min(memory.private.numel(), 100_003)
    numbers = torch.arange(count, dtype=torch.float32).remainder_(1000)
    for name, tensor in (("arena", memory.arena[:count]), ("private", memory.private[:count])):
        tensor.copy_(numbers * (world.rank + 1))
        ours(tensor, f"check.{name}")()
        if not torch.equal(tensor, numbers * sum(range(1, world.size + 1))):
            raise AssertionError(f"allreduce of {count} floats in {name} memory: wrong sum on rank {world.rank}")
        tensor.fill_(0)


def add_bars(result: Result) -> None:
    copy, others, most = result.best("64 MiB", *COPIES), tuple(peers.PEERS), "64 MiB"
    for name, work, limit, times in ((ARENA, "64 MiB, arena", 0.65, 4), (PRIVATE, "64 MiB, private", 1.5, 1.6)):
        if (mine := result.best(most, name)) is not None:
            faster = ratio(result.best(most, *others), mine)
            result.bar(work, "time / best plain copy", "≤", limit, ratio(mine, copy))
            result.bar(work, "faster than the best peer", "≥", times, faster, recorded="Intel MPI 11.4 ms")
    if (mine := result.best("4 MiB", ARENA)) is not None:
        faster = ratio(result.best("4 MiB", *others), mine)
        result.bar("4 MiB, arena", "faster than the best peer", "≥", 4, faster, recorded="oneCCL 0.23 ms")
    if (mine := result.best("64 KiB", *OURS)) is not None:
        # The bar is meant for the transport. It is harder to reach through Python and the engine.
        quantity = "time from Python / best peer (transport alone: transport.cc)"
        result.bar("64 KiB", quantity, "≤", 1, ratio(mine, result.best("64 KiB", *others)), recorded="Intel MPI 4 µs")
    if (mine := result.best("4 B", PRIVATE)) is not None:
        result.bar("one float, private", "time of hvd.allreduce_", "≤", 30, scaled(mine, 1e6), "µs")


def on_every_rank(options: Any) -> None:
    result = Result("allreduce", "Allreduce of one float32 tensor", World(), options, (*OURS, "ours"))
    sizes: Sequence[int] = SIZES
    if options.placement:
        sizes = FEW_SIZES if options.ours_only else PINNED_SIZES
    if options.sizes:
        sizes = [mib * MIB for mib in options.sizes]
    if options.quick:
        sizes = (4, 64 * KIB)
    memory = Memory(max(sizes) // 4)
    check(result.world, memory)
    reducers = {} if options.ours_only else peers.start(result)
    if options.placement:
        result.measure("barrier", barriers(reducers))
    for size in sizes:
        result.measure(size_name(size), contenders(memory, size // 4, reducers), size)
    add_bars(result)
    result.publish()


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", type=int, nargs="+", metavar="MIB", help="only tensors of these sizes")
    parser.add_argument("--ours-only", action="store_true", help="without peers, but with the plain copies")
    parser.add_argument("--no-mpi", action="store_true", help="never start the world through mpirun, so without mpi4py")


if __name__ == "__main__":
    harness.main(
        on_every_rank,
        seconds=4,
        add_options=add_options,
        with_mpi=lambda options: not (options.no_mpi or options.ours_only) and peers.has_mpi4py(),
    )
