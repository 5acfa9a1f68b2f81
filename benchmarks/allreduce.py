"""Measures the allreduce of one float32 tensor by size: this library, its peers, and plain copies.

    python -m benchmarks.allreduce -np 2

This library reduces in place by `hvd.allreduce_`, in the arena and in private memory. Peers write to another tensor,
because that is their fastest way.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import harness, peers
from .harness import Contender, World
from .record import COPIES, Bar, Result, Row, publish, ratio

ARENA, PRIVATE = "ours, arena", "ours, private"
MEMCPY, STREAMING = COPIES
# This contender moves as many bytes between ranks as a private tensor does, but almost none to and from memory.
EXCHANGE = "exchange alone"
KIB, MIB = 1 << 10, 1 << 20
SIZES = (4, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)


def size_name(count: int) -> str:
    if count >= MIB:
        return f"{count // MIB} MiB"
    return f"{count // KIB} KiB" if count >= KIB else f"{count} B"


class Memory:
    """Has tensors of the largest size. Each row of the table uses the first elements of them."""

    def __init__(self, count: int) -> None:
        import perseus_like.torch as hvd

        self.private, self.out = (torch.empty(count).fill_(0) for _ in range(2))
        self.arena = hvd.empty(count).fill_(0)


def ours(tensor: torch.Tensor, name: str) -> Callable[[], object]:
    import perseus_like.torch as hvd

    return lambda: hvd.allreduce_(tensor, op=hvd.Sum, name=name)


def copies(to: torch.Tensor, source: torch.Tensor) -> list[Contender]:
    from perseus_like import _core

    count = to.numel() * to.element_size()
    addresses = to.data_ptr(), source.data_ptr()
    return [
        Contender.of(MEMCPY, lambda: ctypes.memmove(*addresses, count)),
        Contender.of(STREAMING, lambda: _core.copy(*addresses, count, True)),
    ]


def exchange(private: torch.Tensor, count: int) -> Callable[[], object]:
    """Returns a function that reduces one small tensor many times as a group. The tensor stays in the core's cache."""
    import perseus_like.torch as hvd

    part = 64 * KIB
    group = [private[:part]] * (count // part)
    return lambda: hvd.grouped_allreduce_(group, op=hvd.Sum, name=f"exchange.{count}")


def contenders(memory: Memory, count: int, reducers: dict[str, harness.Reducer]) -> list[Contender]:
    arena, private, out = memory.arena[:count], memory.private[:count], memory.out[:count]
    made = [
        Contender.of(ARENA, ours(arena, f"arena.{count}")),
        Contender.of(PRIVATE, ours(private, f"private.{count}")),
    ]
    made += [Contender.of(name, reducer(private)) for name, reducer in reducers.items()]
    if count * private.element_size() >= 16 * MIB:
        made.append(Contender.of(EXCHANGE, exchange(private, count)))
    return made + copies(out, private)


def check(world: World, memory: Memory) -> None:
    """Raises AssertionError unless this library returns the sum of all ranks' tensors."""
    count = min(memory.private.numel(), 100_003)
    expected = torch.arange(count, dtype=torch.float32).remainder_(1000) * sum(range(1, world.size + 1))
    for name, tensor in (("arena", memory.arena[:count]), ("private", memory.private[:count])):
        tensor.copy_(torch.arange(count, dtype=torch.float32).remainder_(1000) * (world.rank + 1))
        ours(tensor, f"check.{name}")()
        if not torch.equal(tensor, expected):
            raise AssertionError(f"allreduce of {count} floats in {name} memory: wrong sum on rank {world.rank}")
        tensor.fill_(0)


def bars(result: Result) -> list[Bar]:
    others = tuple(peers.PEERS)
    made = []
    if (row := result.row("64 MiB")) is not None:
        copy, peer = row.best(COPIES), row.best(others)
        arena, private = row.median(ARENA), row.median(PRIVATE)
        recorded = "Intel MPI 11.4 ms"
        made += [
            Bar("64 MiB, arena", "time / best plain copy", "≤", 0.65, ratio(arena, copy)),
            Bar("64 MiB, private", "time / best plain copy", "≤", 1.5, ratio(private, copy)),
            Bar("64 MiB, arena", "faster than the best peer", "≥", 4, ratio(peer, arena), recorded=recorded),
            Bar("64 MiB, private", "faster than the best peer", "≥", 1.6, ratio(peer, private), recorded=recorded),
        ]
    if (row := result.row("4 MiB")) is not None:
        faster = ratio(row.best(others), row.median(ARENA))
        made.append(Bar("4 MiB, arena", "faster than the best peer", "≥", 4, faster, recorded="oneCCL 0.23 ms"))
    if (row := result.row("64 KiB")) is not None:
        # The bar is meant for the transport. It is harder to reach through Python and the engine.
        slower = ratio(row.best((ARENA, PRIVATE)), row.best(others))
        quantity = "time from Python / best peer (transport alone: transport.cc)"
        made.append(Bar("64 KiB", quantity, "≤", 1, slower, recorded="Intel MPI 4 µs"))
    if (row := result.row("4 B")) is not None:
        private = row.median(PRIVATE)
        value = None if private is None else private * 1e6
        made.append(Bar("one float, private", "time of hvd.allreduce_", "≤", 30, value, "µs"))
    return made if result.world.size == 2 and not result.quick else []


def on_every_rank(options: argparse.Namespace) -> None:
    world = World()
    sizes = [mib * MIB for mib in options.sizes] if options.sizes else list(SIZES)
    if options.quick:
        sizes = [4, 64 * KIB]
    memory = Memory(max(sizes) // 4)
    check(world, memory)
    reducers: dict[str, harness.Reducer] = {}
    missing: dict[str, str] = {}
    if not options.ours_only:
        reducers, missing = peers.start_peers(world)
    result = Result("allreduce", "Allreduce of one float32 tensor", world, (ARENA, PRIVATE), missing=missing)
    result.quick = options.quick
    for size in sizes:
        found = harness.measure(world, contenders(memory, size // 4, reducers), harness.budget_of(options))
        result.rows.append(Row(size_name(size), found, size))
    result.bars = bars(result)
    publish(result, options.output)
    world.barrier()
    peers.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = harness.parser("Allreduce of one tensor, against every peer that is installed.", seconds=4)
    parser.add_argument("--sizes", type=int, nargs="+", metavar="MIB", help="only tensors of these sizes")
    parser.add_argument("--ours-only", action="store_true", help="without peers, but with the plain copies")
    parser.add_argument("--no-mpi", action="store_true", help="never start the world through mpirun, so without mpi4py")
    options: Any = parser.parse_args(arguments)
    if harness.in_world():
        on_every_rank(options)
        return 0
    with_mpi = not (options.no_mpi or options.ours_only) and peers.has_mpi4py() and harness.mpirun() is not None
    return harness.start_world("benchmarks.allreduce", arguments, options, with_mpi=with_mpi)


if __name__ == "__main__":
    sys.exit(main())
