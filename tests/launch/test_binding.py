"""Binding to cores: shares on machines that a tree like sysfs describes to the real lscpu, and masks of real ranks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from perseus_like.launch.binding import Binding, Cpu, parse_cpu_list, read_topology, share_out
from perseus_like.launch.start_errors import LaunchError

Perseusrun = Callable[..., Any]
Machine = Callable[[int, int, int], list[Cpu]]

pytestmark = pytest.mark.skipif(shutil.which("lscpu") is None, reason="there is no lscpu")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """machine(sockets, cores of each, hardware threads of a core): its topology, as lscpu reads it from a tree.

    Each socket is a NUMA node. The second hardware threads are counted after all the first ones, as Linux does.
    """

    def put(path: str, content: object) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{content}\n")

    def mask(cpus: Iterable[int], total: int) -> str:
        bits = sum(1 << cpu for cpu in cpus)
        words = [f"{bits >> 32 * word & 0xFFFFFFFF:08x}" for word in range((total + 31) // 32)]
        return ",".join(reversed(words))

    def make(sockets: int, cores: int, threads: int) -> list[Cpu]:
        total = sockets * cores * threads
        core_of = [cpu % (sockets * cores) for cpu in range(total)]
        for name in ("online", "possible", "present"):
            put(f"sys/devices/system/cpu/{name}", f"0-{total - 1}")
        put("sys/devices/system/cpu/kernel_max", total)
        put("proc/cpuinfo", "\n".join(f"processor\t: {cpu}\nmodel name\t: none\n" for cpu in range(total)))
        for cpu, core in enumerate(core_of):
            topology = f"sys/devices/system/cpu/cpu{cpu}/topology"
            put(f"{topology}/core_id", core % cores)
            put(f"{topology}/physical_package_id", core // cores)
            put(f"{topology}/thread_siblings", mask([i for i in range(total) if core_of[i] == core], total))
            same_socket = [i for i in range(total) if core_of[i] // cores == core // cores]
            put(f"{topology}/core_siblings", mask(same_socket, total))
            put(f"sys/devices/system/node/node{core // cores}/cpumap", mask(same_socket, total))
        return read_topology(["lscpu", "--sysroot", str(tmp_path), "--parse=CPU,CORE,SOCKET,NODE"])

    return make


def shares(topology: list[Cpu], kind: str, size: int) -> list[list[int]]:
    binding = share_out(topology, kind, size)
    assert isinstance(binding, Binding), binding
    return binding.cpus


def test_cores_are_divided_in_blocks_with_their_hardware_threads(machine: Machine) -> None:
    topology = machine(2, 4, 2)
    assert shares(topology, "core", 2) == [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]]
    assert shares(topology, "core", 8) == [[core, core + 8] for core in range(8)]
    assert shares(topology, "core", 3) == [[0, 1, 8, 9], [2, 3, 4, 10, 11, 12], [5, 6, 7, 13, 14, 15]]


@pytest.mark.parametrize("size", range(1, 49))
def test_no_core_is_given_twice_and_none_is_left_out(machine: Machine, size: int) -> None:
    topology = machine(2, 24, 1)
    given = [cpu for share in shares(topology, "core", size) for cpu in share]
    assert sorted(given) == list(range(48))
    assert all(shares(topology, "core", size))


@pytest.mark.parametrize("kind", ["numa", "socket"])
def test_ranks_are_spread_over_nodes_and_sockets(machine: Machine, kind: str) -> None:
    topology = machine(2, 4, 2)
    first, second = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]
    assert shares(topology, kind, 2) == [first, second]
    assert shares(topology, kind, 4) == [first, first, second, second]
    assert shares(topology, kind, 1) == [first]


def test_threads_are_cores_not_hardware_threads(machine: Machine) -> None:
    topology = machine(2, 4, 2)
    for kind, size, threads in (("core", 2, 4), ("core", 3, 2), ("core", 8, 1), ("numa", 4, 2), ("socket", 2, 4)):
        binding = share_out(topology, kind, size)
        assert isinstance(binding, Binding)
        assert binding.threads == threads, (kind, size)


def test_more_ranks_than_cores_are_not_bound(machine: Machine) -> None:
    text = share_out(machine(1, 2, 2), "core", 3)
    assert text == "not binding: 3 ranks are more than the 2 cores that this job may use"


def test_the_picture(machine: Machine) -> None:
    binding = share_out(machine(2, 2, 2), "core", 2)
    assert isinstance(binding, Binding)
    assert binding.draw() == ["rank 0: [BB BB][.. ..] 0-1,4-5", "rank 1: [.. ..][BB BB] 2-3,6-7"]


def test_a_machine_without_numa(tmp_path: Path) -> None:
    printed = tmp_path / "printed"
    printed.write_text("# CPU,Core,Socket,Node\n0,0,0,\n1,1,0,\n")
    assert shares(read_topology(["cat", str(printed)]), "numa", 2) == [[0, 1], [0, 1]]


def test_lists_of_processors() -> None:
    assert parse_cpu_list("0-2,5") == {0, 1, 2, 5}
    for wrong in ("", "3-1", "a", "1,,2"):
        with pytest.raises(LaunchError, match="not a list of processors such as 0-3,8"):
            parse_cpu_list(wrong)


REPORT = "import os; print(sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'], flush=True)"


def reported(done: Any) -> list[str]:
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one processor")
def test_ranks_get_their_masks(perseusrun: Perseusrun) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    first, second, *_ = sorted(os.sched_getaffinity(0))
    line = ("--no-prefix", "--cpu-list", f"{first},{second}", "python3", "-c", REPORT)
    topology = [
        cpu for cpu in read_topology(["lscpu", "--parse=CPU,CORE,SOCKET,NODE"]) if cpu.number in (first, second)
    ]
    if len({cpu.core for cpu in topology}) < 2:
        pytest.skip("the first two processors are one core")
    done = perseusrun("-np", "2", "--report-bindings", *line, env=environment)
    assert reported(done) == sorted([f"[{first}] 1", f"[{second}] 1"])
    assert "binding 2 ranks to cores: 1 of 2 cores for each, OMP_NUM_THREADS=1" in done.stderr
    assert "rank 0: [B .]" in done.stderr
    done = perseusrun("-np", "1", *line, env={**environment, "OMP_NUM_THREADS": "7"})
    assert reported(done) == [f"[{first}, {second}] 7"]
    done = perseusrun("-np", "3", *line, env=environment)
    assert len(reported(done)) == 3
    assert "not binding: 3 ranks are more than the 2 cores" in done.stderr


def test_nothing_is_bound_by_default(perseusrun: Perseusrun) -> None:
    mask = sorted(os.sched_getaffinity(0))
    for options in ((), ("--bind-to", "none")):
        done = perseusrun("-np", "2", "--no-prefix", *options, "python3", "-c", REPORT)
        assert [line.rpartition(" ")[0] for line in reported(done)] == [str(mask)] * 2
        assert "binding" not in done.stderr


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--cpu-list", "100000"], "this process may not use the processors 100000"),
        (["--bind-to", "l3cache"], "knows core, numa, socket, none"),
        (["--cpu-list", "0", "--mpi", "--mpirun", "mpirun"], "mpirun starts the ranks of this job"),
        (["--report-bindings", "--min-np", "1"], "elastic jobs do not bind their workers"),
    ],
)
def test_what_cannot_be_done_is_an_error(options: list[str], text: str, perseusrun: Perseusrun) -> None:
    done = perseusrun("-np", "1", *options, "true")
    assert done.returncode == 2
    assert text in done.stderr


def test_a_dry_run_shows_the_mask(perseusrun: Perseusrun) -> None:
    first = min(os.sched_getaffinity(0))
    done = perseusrun("-np", "1", "--dry-run", "--cpu-list", str(first), "true")
    assert f"taskset -c {first} true" in done.stdout
