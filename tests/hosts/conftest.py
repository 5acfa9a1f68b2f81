"""Labs, and worlds of ranks on their hosts."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from .lab import Lab
from .links import Links, why_not

Labs = Callable[..., Lab]
OnHosts = Callable[..., "subprocess.CompletedProcess[str]"]
Told = Callable[[int], list[str]]

HEAD = """
import os, sys, time
import numpy as np
import perseus_like.numpy as hvd

def tell(*words):
    # One write, so that ranks' lines do not mix; a file, so that what the launcher cuts off is not lost.
    with open(f"rank{os.environ.get('PMI_RANK', os.environ.get('OMPI_COMM_WORLD_RANK'))}.txt", "a") as file:
        file.write(" ".join(map(str, words)) + "\\n")
"""


@pytest.fixture
def labs() -> Iterator[Labs]:
    """`labs(2, Links(rate="1gbit"))` brings so many hosts up, until the test ends; skips where the machine cannot."""
    with ExitStack() as stack:

        def up(hosts: int, links: Links | None = None) -> Lab:
            if (reason := why_not(links)) is not None:
                pytest.skip(f"no lab of network namespaces: {reason}")
            return stack.enter_context(Lab(hosts, links))

        yield up


def launch_line(lab: Lab, slots: dict[str, int], *options: str) -> list[str]:
    """The command line of perseusrun on the first host, with so many ranks on each."""
    return lab.perseusrun(slots, *options)


@pytest.fixture
def on_hosts(tmp_path: Path, to_end: OnHosts) -> OnHosts:
    """Runs a program to its end: `on_hosts(lab, program, [2, 1])` on two ranks of h1 and one of h2.

    Needs an MPI beside this Python. `tell` in the program writes to rank<N>.txt.
    """
    if shutil.which("mpirun", path=str(Path(sys.executable).parent)) is None and shutil.which("mpirun") is None:
        pytest.skip("no mpirun")

    def run(
        lab: Lab, program: str, ranks: list[int], *options: str, seconds: float = 60, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "program.py"
        file.write_text(HEAD + textwrap.dedent(program))
        slots = dict(zip(lab.hosts, ranks, strict=True))
        return to_end([*lab.perseusrun(slots, *options), sys.executable, file], seconds, tmp_path, **environment)

    return run


@pytest.fixture
def told(tmp_path: Path) -> Told:
    """The lines that a rank wrote with `tell`."""

    def read(rank: int) -> list[str]:
        file = tmp_path / f"rank{rank}.txt"
        return file.read_text().splitlines() if file.exists() else []

    return read
