"""Starts an example on two ranks, as its own first lines say."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
TIMEOUT_SECONDS = 240

Example = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run_program(to_end: Example) -> Example:
    """Runs a program with these arguments to its end, on two ranks unless said otherwise."""

    def run(path: Path, *args: object, ranks: int = 2) -> subprocess.CompletedProcess[str]:
        launcher = [sys.executable, "-m", "perseus_like.launch", "--no-prefix", "-np", str(ranks)]
        return to_end([*launcher, sys.executable, path, *args], TIMEOUT_SECONDS)

    return run


@pytest.fixture
def run_example(run_program: Example) -> Example:
    """The same for a program of examples/."""
    return lambda path, *args, **more: run_program(EXAMPLES / path, *args, **more)
