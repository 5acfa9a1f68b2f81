"""Fixtures of tests in real processes.

The tests in in_world/ run on every rank of a world that test_worlds.py starts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

collect_ignore = [] if "PERSEUS_IN_WORLD" in os.environ else ["in_world"]

Ranks = Callable[..., "subprocess.CompletedProcess[str]"]
Mpirun = Callable[..., "subprocess.CompletedProcess[str]"]

HEAD = """
import os, sys, time
import numpy as np
import perseus_like.numpy as hvd

def report(*words):
    # Each report is one write, so lines do not mix. It goes to a file, so it is kept if the launcher ends the rank.
    with open(f"rank{os.environ['PERSEUS_RANK']}.txt", "a") as file:
        file.write(" ".join(map(str, words)) + "\\n")
"""


@pytest.fixture
def ranks(tmp_path: Path, to_end: Ranks) -> Ranks:
    """Returns a function that runs a program on a number of ranks.

    In the program, `report` writes to rank<N>.txt, which `reports_of` reads.
    """

    def run(
        size: int,
        program: str,
        seconds: float = 60,
        launcher: Sequence[str] = (sys.executable, "-m", "perseus_like.launch"),
        **environment: str,
    ) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "program.py"
        file.write_text(HEAD + textwrap.dedent(program))
        return to_end([*launcher, "-np", size, sys.executable, file], seconds, tmp_path, **environment)

    return run


@pytest.fixture
def reports_of(tmp_path: Path) -> Callable[[int], str]:
    """Returns a function that returns the reports of a rank.

    The text is empty if the rank ended before its first report.
    """

    def read(rank: int) -> str:
        file = tmp_path / f"rank{rank}.txt"
        return file.read_text() if file.exists() else ""

    return read


@pytest.fixture
def mpirun(tmp_path: Path, to_end: Ranks) -> Mpirun:
    """Returns a function that runs a program on 4 ranks by MPICH's mpirun."""
    beside = Path(sys.executable).parent / "mpirun"
    program = str(beside) if beside.exists() else shutil.which("mpirun")
    if program is None:
        pytest.skip("no mpirun")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    if "HYDRA" not in version:
        pytest.skip("an mpirun that is not MPICH's")

    def run(text: str, **environment: str) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "program.py"
        file.write_text(textwrap.dedent(text))
        return to_end([program, "-np", 4, sys.executable, file], 120, tmp_path, **environment)

    return run
