"""Measures ranks that are pinned to processors of their own: allreduces, many tensors, and a step of Adam.

    python -m benchmarks.cores -np 4 --work allreduce
    python -m benchmarks.cores -np 4 --work allreduce --placement packed --ours-only

benchmarks.fifteen_minutes runs it at 2, 4, 8 and 16 ranks. The work is that of benchmarks.allreduce, many_tensors and
sharded_optimizer. The JSON has what tells where time goes: the time of each rank, the processor, core and NUMA node of
each, the time of a barrier, and private memory beside the arena.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from perseus_like.launch.binding import Cpu, read_topology

from . import RESULT, harness, write_whole
from .first_hour.steps import Step, succeeds
from .harness import Budget, Contender, World
from .record import Result, Row, as_text

KIB, MIB = 1 << 10, 1 << 20
SIZES = (4, KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)
FEW_SIZES = (4, 64 * KIB, 4 * MIB, 64 * MIB)  # for placements that are compared with the usual one
COUNTS = (2, 4, 8, 16)
RANK_VARIABLES = ("PERSEUS_RANK", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
BARRIER, ADAM = "barrier", "step with Adam, MLP of 12 × 1536², 113 MB"

# The ways to place ranks on the hardware threads of cores, and on NUMA nodes.
PLACEMENTS = {
    "spread": "a rank has one hardware thread, on a core of its own while there are cores",
    "packed": "a rank has one hardware thread, and both threads of a core have ranks",
    "whole": "a rank has all hardware threads of its core",
    "nodes": "as spread, and ranks that follow one another are on different NUMA nodes",
}


def places(topology: Sequence[Cpu], placement: str, ranks: int) -> list[list[int]]:
    """Returns the processors of each rank. If there are more ranks than places, ranks share them."""
    cores: dict[int, list[Cpu]] = {}
    for cpu in sorted(topology, key=lambda cpu: (cpu.socket, cpu.node, cpu.core, cpu.number)):
        cores.setdefault(cpu.core, []).append(cpu)
    by_core = list(cores.values())
    if placement == "nodes":
        nodes: dict[int, list[list[Cpu]]] = {}
        for core in by_core:
            nodes.setdefault(core[0].node, []).append(core)
        by_core = [core for row in zip_longest(*nodes.values()) for core in row if core is not None]
    numbers = [[cpu.number for cpu in core] for core in by_core]
    if placement == "packed":
        found = [[number] for number in chain.from_iterable(numbers)]
    elif placement == "whole":
        found = numbers
    else:
        found = [[number] for row in zip_longest(*numbers) for number in row if number is not None]
    return [found[rank % len(found)] for rank in range(ranks)]


def topology() -> list[Cpu]:
    """Returns the processors that this process may use."""
    allowed = os.sched_getaffinity(0)
    return [cpu for cpu in read_topology(("lscpu", "--parse=CPU,CORE,SOCKET,NODE")) if cpu.number in allowed]


def steps(ranks: Sequence[int], small: bool) -> list[Step]:
    """Returns the steps for benchmarks.fifteen_minutes. Placements that change nothing on this machine are left out."""
    found = topology()
    counts = list(ranks) or [count for count in COUNTS if count <= len(found)] or [COUNTS[0]]
    seconds = {"allreduce": 60, "tensors": 40, "adam": 60}

    def step(count: int, work: str, placement: str, *options: str) -> Step:
        command = [sys.executable, "-m", "benchmarks.cores", "-np", str(count), "--work", work]
        command += ["--placement", placement, *options, *(["--quick"] if small else [])]
        name = f"{work}_{count}" if placement == "spread" else f"{work}_{count}_{placement}"
        return Step(name, "measured", command, succeeds, {}, count, seconds[work], part="cores")

    listed = [step(count, "allreduce", "spread") for count in reversed(counts)]
    listed += [step(count, work, "spread") for work in ("tensors", "adam") for count in reversed(counts)]
    for count in reversed(counts):
        usual = places(found, "spread", count)
        others = [name for name in PLACEMENTS if places(found, name, count) != usual]
        listed += [step(count, "allreduce", name, "--ours-only") for name in others]
    return listed


def pin(placement: str, size: int) -> list[dict[str, Any]]:
    """Pins this process, before it starts threads. Returns where each rank is."""
    found = topology()
    chosen = places(found, placement, size)
    rank = next(int(os.environ[name]) for name in RANK_VARIABLES if name in os.environ)
    os.sched_setaffinity(0, chosen[rank])
    cpus = {cpu.number: cpu for cpu in found}
    siblings = {number: [other.number for other in found if other.core == cpu.core] for number, cpu in cpus.items()}
    return [
        {
            "processors": mine,
            "core": cpus[mine[0]].core,
            "node": cpus[mine[0]].node,
            "socket": cpus[mine[0]].socket,
            "hardware_threads_of_the_core": siblings[mine[0]],
        }
        for mine in chosen
    ]


def budget_of(options: argparse.Namespace) -> Budget:
    if options.quick:
        return harness.budget_of(options)
    return Budget(options.seconds, least_rounds=3, untimed=2)


def barriers(reducers: Any) -> list[Contender]:
    import torch.distributed as dist

    import perseus_like.torch as hvd

    made = [Contender.of("ours", lambda: hvd.barrier())]
    if "gloo" in reducers:
        made.append(Contender.of("gloo", lambda: dist.barrier()))
    if "MPI" in reducers:
        from mpi4py import MPI

        made.append(Contender.of("MPI", MPI.COMM_WORLD.Barrier))
    return made


def measure_allreduce(world: World, options: argparse.Namespace, reducers: Any) -> Iterator[Row]:
    from . import allreduce

    sizes: Sequence[int] = FEW_SIZES if options.ours_only else SIZES
    if options.quick:
        sizes = (4, 64 * KIB)
    memory = allreduce.Memory(max(sizes) // 4)
    allreduce.check(world, memory)
    yield Row(BARRIER, harness.measure(world, barriers(reducers), budget_of(options)))
    for size in sizes:
        contenders = allreduce.contenders(memory, size // 4, reducers)
        yield Row(allreduce.size_name(size), harness.measure(world, contenders, budget_of(options)), size)


def measure_tensors(world: World, options: argparse.Namespace, reducers: Any) -> Iterator[Row]:
    from . import many_tensors

    shapes_of: dict[str, list[tuple[int, ...]]] = {
        many_tensors.RESNET: harness.resnet_shapes(2 if options.quick else harness.WIDTH),
        many_tensors.TINY: [(256,)] * (20 if options.quick else 300),
    }
    for number, (name, shapes) in enumerate(shapes_of.items()):
        many_tensors.check(world, shapes)
        contenders = many_tensors.contenders(shapes, str(number), None, reducers.get("MPI"))
        yield Row(name, harness.measure(world, contenders, budget_of(options)))


def measure_adam(world: World, options: argparse.Namespace, _: Any) -> Iterator[Row]:
    from . import sharded_optimizer as training

    plain = training.PlainProcess(world, options.quick)
    mine = (training.DISTRIBUTED, training.BY_SHARD)
    whole, updates = training.contenders(plain, options.quick, mine, (training.ALONE, training.DDP))
    yield Row(ADAM, harness.measure(world, whole, budget_of(options)))
    yield Row("step() alone", harness.measure(world, updates, budget_of(options)))
    plain.end()


WORK: dict[str, Callable[[World, argparse.Namespace, Any], Iterator[Row]]] = {
    "allreduce": measure_allreduce,
    "tensors": measure_tensors,
    "adam": measure_adam,
}
OURS = {
    "allreduce": ("ours, arena", "ours, private", "ours"),
    "tensors": ("ours", "ours, grouped", "ours, arena"),
    "adam": ("DistributedOptimizer", "DistributedOptimizer, shard=True"),
}


def as_dict(result: Result, options: argparse.Namespace, pins: Sequence[Any], processors: int) -> dict[str, Any]:
    data = {**result.as_dict(), "work": options.work, "placement": options.placement, "pins": pins}
    data["machine"]["cores"] = processors  # not those that this rank may use
    return data


def on_every_rank(options: argparse.Namespace) -> None:
    processors = len(os.sched_getaffinity(0))
    pins = pin(options.placement, options.np)
    import torch

    from . import peers

    torch.set_num_threads(1)
    world = World()
    reducers, missing = ({}, {}) if options.ours_only or options.work == "adam" else peers.start_peers(world)
    title = f"{options.work}, pinned ({options.placement})"
    result = Result(f"cores-{options.work}", title, world, OURS[options.work], missing=missing, quick=options.quick)
    for row in WORK[options.work](world, options, reducers):
        result.rows.append(row)
        if world.rank == 0 and RESULT in os.environ:
            # If the program is ended, the rows that are there remain.
            write_whole(Path(os.environ[RESULT]), json.dumps(as_dict(result, options, pins, processors)))
    if world.rank == 0:
        print(as_text(as_dict(result, options, pins, processors)), flush=True)
    world.barrier()
    peers.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = harness.parser("Allreduces, many tensors and a step of Adam, on pinned ranks.", seconds=1)
    parser.add_argument("--work", choices=tuple(WORK), default="allreduce")
    parser.add_argument("--placement", choices=tuple(PLACEMENTS), default="spread")
    parser.add_argument("--ours-only", action="store_true", help="without peers, but with the plain copies")
    options: Any = parser.parse_args(arguments)
    if harness.in_world():
        on_every_rank(options)
        return 0
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the host's name may have no address without a network
    from . import peers

    with_mpi = not options.ours_only and options.work != "adam" and peers.has_mpi4py() and harness.mpirun() is not None
    return harness.start_world("benchmarks.cores", arguments, options, with_mpi=with_mpi)


if __name__ == "__main__":
    sys.exit(main())
