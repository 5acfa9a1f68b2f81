"""Binding of the ranks that perseusrun starts on this host: which processors each of them may use.

`lscpu` of util-linux reads the topology, for every kind of processor and container that it knows.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import NamedTuple

from .start_errors import LaunchError

KINDS = ("core", "numa", "socket", "none")
_PLURALS = {"core": "cores", "numa": "NUMA nodes", "socket": "sockets"}
_LSCPU = ("lscpu", "--parse=CPU,CORE,SOCKET,NODE")


class Cpu(NamedTuple):
    """A processor as Linux counts them: a hardware thread of a core. Cores are numbered over all sockets."""

    number: int
    core: int
    socket: int
    node: int


@dataclass(frozen=True)
class Binding:
    """The processors of each rank. `topology` has all processors of this host that the job may use."""

    kind: str
    topology: list[Cpu]
    cpus: list[list[int]]  # by rank

    @property
    def threads(self) -> int:
        """The number of threads that suits every rank: the cores of the smallest share."""
        shares = [set(share) for share in self.cpus]
        cores = [len({cpu.core for cpu in self.topology if cpu.number in share}) for share in shares]
        together = [shares.count(share) for share in shares]  # ranks that have the same share
        return max(1, min(count // ranks for count, ranks in zip(cores, together, strict=True)))

    def describe(self, threads: str | None) -> str:
        """Returns one line about the choice. `threads` is the value of OMP_NUM_THREADS."""
        sizes = sorted({len({cpu.core for cpu in self.topology if cpu.number in share}) for share in self.cpus})
        cores = " to ".join(map(str, sizes[:1] + sizes[1:][-1:]))
        total = len({cpu.core for cpu in self.topology})
        return (
            f"binding {len(self.cpus)} ranks to {_PLURALS[self.kind]}: {cores} of {total} cores for each, "
            f"OMP_NUM_THREADS={threads}"
        )

    def draw(self) -> list[str]:
        """Returns a line for each rank: sockets in brackets, a B for each hardware thread of a core that it uses."""
        return [f"rank {rank}: {self._row(set(share))} {ranges(share)}" for rank, share in enumerate(self.cpus)]

    def _row(self, share: set[int]) -> str:
        sockets: dict[int, dict[int, str]] = {}
        for cpu in _in_order(self.topology):
            cores = sockets.setdefault(cpu.socket, {})
            cores[cpu.core] = cores.get(cpu.core, "") + ("B" if cpu.number in share else ".")
        return "".join(f"[{' '.join(cores.values())}]" for cores in sockets.values())


def find_binding(kind: str, cpu_list: str | None, size: int) -> Binding | str:
    """Returns the processors of `size` ranks on this host, or the reason why they are not bound. Raises LaunchError."""
    allowed = os.sched_getaffinity(0)
    if cpu_list is not None:
        wanted = parse_cpu_list(cpu_list)
        if outside := sorted(wanted - allowed):
            raise LaunchError(
                f"--cpu-list {cpu_list}: this process may not use the processors {ranges(outside)}; it may use "
                f"{ranges(sorted(allowed))}"
            )
        allowed = wanted
    topology = [cpu for cpu in read_topology(_LSCPU) if cpu.number in allowed]
    return share_out(topology, kind, size)


def read_topology(command: Sequence[str]) -> list[Cpu]:
    """Returns the processors that are online. `command` prints them as `lscpu --parse` does. Raises LaunchError."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"})
    except (OSError, subprocess.CalledProcessError) as problem:
        raise LaunchError(
            f"--bind-to: cannot read this host's topology by {command[0]} ({problem}); install util-linux, or leave "
            "--bind-to and --cpu-list out"
        ) from None
    rows = [line.split(",") for line in done.stdout.splitlines() if line and not line.startswith("#")]
    # A column is empty if the kernel does not know it, for example the node of a machine without NUMA.
    return [Cpu(*(int(word or 0) for word in row)) for row in rows]


def share_out(topology: Sequence[Cpu], kind: str, size: int) -> Binding | str:
    """Divides processors among `size` ranks, in blocks of neighbours. Returns the reason if it would do harm."""
    cores = _groups(topology, lambda cpu: cpu.core)
    if size > len(cores):
        return f"not binding: {size} ranks are more than the {len(cores)} cores that this job may use"
    if kind == "core":
        # A rank has whole cores, with all their hardware threads. So no core is shared by two ranks.
        bounds = [rank * len(cores) // size for rank in range(size + 1)]
        parts = [list(chain.from_iterable(cores[begin:end])) for begin, end in pairwise(bounds)]
    else:
        places = _groups(topology, (lambda cpu: cpu.node) if kind == "numa" else (lambda cpu: cpu.socket))
        parts = [places[rank * len(places) // size] for rank in range(size)]
    return Binding(kind, list(topology), [sorted(part) for part in parts])


def _in_order(topology: Sequence[Cpu]) -> list[Cpu]:
    return sorted(topology, key=lambda cpu: (cpu.socket, cpu.node, cpu.core, cpu.number))


def _groups(topology: Sequence[Cpu], key: Callable[[Cpu], int]) -> list[list[int]]:
    """Returns the numbers of the processors that share a core, a node or a socket."""
    groups: dict[int, list[int]] = {}
    for cpu in _in_order(topology):
        groups.setdefault(key(cpu), []).append(cpu.number)
    return list(groups.values())


@contextlib.contextmanager
def started_on(cpus: Sequence[int] | None) -> Iterator[None]:
    """A process that is started within this context may use these processors alone. None: as this process."""
    if cpus is None:
        yield
        return
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def parse_cpu_list(text: str) -> set[int]:
    """Parses a list of processors such as 0-3,8. Raises LaunchError."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise LaunchError(f"--cpu-list {text!r}: not a list of processors such as 0-3,8")
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return found


def ranges(cpus: Sequence[int]) -> str:
    """Returns processors in the form that `--cpu-list` takes."""
    blocks: list[list[int]] = []
    for cpu in cpus:
        if blocks and cpu == blocks[-1][1] + 1:
            blocks[-1][1] = cpu
        else:
            blocks.append([cpu, cpu])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in blocks)
