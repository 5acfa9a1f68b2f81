"""Fixtures that run programs of torch.distributed in processes. Every rank of a world runs the tests in in_world/."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

collect_ignore = [] if "PERSEUS_IN_WORLD" in os.environ else ["in_world"]

Done = subprocess.CompletedProcess[str]
Program = Callable[..., Done]

STARTERS = {
    "perseusrun": [sys.executable, "-m", "perseus_like.launch", "-np"],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"],
}

HEAD = """
import os, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist
if not hasattr(dist.Backend, "PERSEUS"):  # torch before 2.5 does not load the backend by itself
    import perseus_like.torch.distributed

def report(*words):
    # Each report is one write to the rank's own file, because a launcher may mix the output of ranks or cut it off.
    with open(f"rank{os.environ.get('RANK', os.environ.get('PERSEUS_RANK'))}.txt", "a") as file:
        file.write(" ".join(map(str, words)) + "\\n")
"""


def start(starter: str, size: int, arguments: list[str], folder: Path, seconds: float, **environment: str) -> Done:
    return subprocess.run(
        [*STARTERS[starter], str(size), *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Returns a function that runs a program on `size` ranks to its end.

    The program's function `report` writes to rank<N>.txt, which `reports_of` reads.
    """

    def run(starter: str, size: int, text: str, seconds: float = 240, **environment: str) -> Done:
        file = tmp_path / "program.py"
        file.write_text(HEAD + textwrap.dedent(text))
        python = [sys.executable] if starter == "perseusrun" else []
        return start(starter, size, [*python, str(file)], tmp_path, seconds, **environment)

    return run


@pytest.fixture
def reports_of(tmp_path: Path) -> Callable[[int], str]:
    """Returns a function that returns the text that a rank wrote with `report`, or an empty text."""

    def read(rank: int) -> str:
        file = tmp_path / f"rank{rank}.txt"
        return file.read_text() if file.exists() else ""

    return read
