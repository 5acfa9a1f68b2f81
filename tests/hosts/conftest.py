"""Fixtures that create network-namespace test beds and run jobs on their hosts."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.job import run_to_end, wait_until

from .links import Links, why_unsupported
from .network_test_bed import NetworkTestBed
from .slurm_cluster import Run, slurm_cluster, why_missing

TestBeds = Callable[..., NetworkTestBed]
OnHosts = Callable[..., "subprocess.CompletedProcess[str]"]
ReportsOf = Callable[[int], list[str]]

HEAD = """
import os, sys, time
import numpy as np
import perseus_like.numpy as hvd

def report(*words):
    # Each report is one write to the rank's own file, because the launcher may mix the output of ranks or cut it off.
    rank = next(os.environ[name] for name in ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "RANK") if name in os.environ)
    with open(f"rank{rank}.txt", "a") as file:
        file.write(" ".join(map(str, words)) + "\\n")
"""


@pytest.fixture
def test_beds() -> Iterator[TestBeds]:
    """Returns a function that creates hosts: `test_beds(2, Links(rate="1gbit"))` creates two.

    It skips the test if the machine allows no test bed.
    """
    with ExitStack() as stack:

        def up(hosts: int, links: Links | None = None) -> NetworkTestBed:
            if (reason := why_unsupported(links)) is not None:
                pytest.skip(f"no network-namespace test bed: {reason}")
            return stack.enter_context(NetworkTestBed(hosts, links))

        yield up


@contextmanager
def network_shell(test_bed: NetworkTestBed, folder: Path) -> Iterator[str]:
    """Yields the path of a remote shell that uses the network, with its servers running on all hosts."""
    program = [sys.executable, "-IS", str(Path(__file__).with_name("network_shell.py"))]
    shell = folder / "network-shell"
    shell.write_text(f'#!/bin/sh\nexec {" ".join(program)} call "$@"\n')
    shell.chmod(0o755)
    with ExitStack() as stack:
        for host in test_bed.hosts:
            line = test_bed.command(host, [*program, "serve", test_bed.address(host)])
            server = stack.enter_context(subprocess.Popen(line, stdout=subprocess.PIPE, text=True))
            stack.callback(server.kill)
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
        yield str(shell)


# MPICH's wheel contains a UCX.
UCX_LIBRARY = Path(sys.prefix) / "lib/mpich/libucp.so.0"


@pytest.fixture
def ucx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets jobs without an mpirun find a UCX. Skips the test if there is none."""
    if not UCX_LIBRARY.exists():
        pytest.skip("no UCX of MPICH's wheel beside this Python")
    monkeypatch.setenv("PERSEUS_UCX_LIBRARY", str(UCX_LIBRARY))


def processes_of(test_bed: NetworkTestBed) -> set[int]:
    return {pid for host in test_bed.hosts for pid in test_bed.processes(host)}


def line_of(pid: int) -> str:
    """Returns the command line of a process, or an empty text if the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def wait_until_nothing_is_left(test_bed: NetworkTestBed, others: AbstractSet[int] = frozenset()) -> None:
    """Waits until no host has a process, except `others`."""

    def left() -> dict[int, str]:
        return {pid: line_of(pid) for pid in processes_of(test_bed) - others}

    wait_until(lambda: not left(), lambda: f"processes are left: {left()}")


@pytest.fixture
def mpirun() -> None:
    """Skips the test if there is no mpirun."""
    if shutil.which("mpirun", path=str(Path(sys.executable).parent)) is None and shutil.which("mpirun") is None:
        pytest.skip("no mpirun")


@pytest.fixture(params=["--mpi", pytest.param("--gloo", marks=pytest.mark.slow)])
def transport(request: pytest.FixtureRequest) -> str:
    """Returns perseusrun's option with which mpirun starts the ranks, or the remote shell does and UCX connects them.

    It skips the test if what the option needs is not there.
    """
    option: str = request.param
    request.getfixturevalue("ucx" if option == "--gloo" else "mpirun")
    return option


@pytest.fixture
def on_hosts(transport: str, tmp_path: Path) -> OnHosts:
    """Returns a function that runs a program to its end.

    `on_hosts(test_bed, program, [2, 1])` runs two ranks on h1 and one on h2. The program's function `report` writes to
    rank<N>.txt.
    """

    def run(
        test_bed: NetworkTestBed, program: str, ranks: list[int], *options: str, **environment: Any
    ) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "program.py"
        file.write_text(HEAD + textwrap.dedent(program))
        slots = dict(zip(test_bed.hosts, ranks, strict=True))
        launcher = test_bed.perseusrun(slots, transport, *options)
        return run_to_end([*launcher, sys.executable, file], tmp_path, **environment)

    return run


@pytest.fixture
def reports_of(tmp_path: Path) -> ReportsOf:
    """Returns a function that returns the lines that a rank wrote with `report`."""

    def read(rank: int) -> list[str]:
        file = tmp_path / f"rank{rank}.txt"
        return file.read_text().splitlines() if file.exists() else []

    return read


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Run]:
    """Returns a function that runs a command on the first of two hosts of a Slurm: `slurm("srun", "-n", "4", …)`.

    It skips the test if the machine has no Slurm, or allows no test bed.
    """
    if reason := why_missing():
        pytest.skip(reason)
    with slurm_cluster(tmp_path) as run:
        yield run


def with_pmi(slurm: Run, kind: str) -> str:
    """Returns srun's option for a kind of PMI. Skips the test if this Slurm does not have this kind."""
    if kind not in slurm("srun", "--mpi=list").stdout.split():
        pytest.skip(f"this Slurm has no --mpi={kind}")
    return f"--mpi={kind}"
