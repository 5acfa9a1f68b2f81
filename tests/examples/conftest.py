"""Fixtures that start an example on two ranks, as the first lines of the example say."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.job import run_to_end

EXAMPLES = Path(__file__).parent.parent.parent / "examples"

Example = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run_program() -> Example:
    """Returns a function that runs a program with its arguments to its end, by default on two ranks."""

    def run(path: Path, *args: object, ranks: int = 2) -> subprocess.CompletedProcess[str]:
        launcher = [sys.executable, "-m", "perseus_like.launch", "--no-prefix", "-np", str(ranks)]
        return run_to_end([*launcher, sys.executable, path, *args])

    return run


# An example prints its progress, and its last line prints the result.
PROGRESS = re.compile(r"(epoch|step)\W*\d|\[\d+\]|Iter #\d|\d/\d", re.IGNORECASE)
REACHED = re.compile(
    r"\d.*(accuracy|right|points near|bits per character|img/sec|images per second|Acc@1)|"
    r"(accuracy|right|vote|Acc@1|img/sec|most).*\d",
    re.IGNORECASE,
)


@pytest.fixture
def run_example(run_program: Example) -> Example:
    """Returns a function that runs a program of examples/, and checks that it prints its progress and its result."""

    def run(path: str, *args: object, **more: int) -> subprocess.CompletedProcess[str]:
        done = run_program(EXAMPLES / path, *args, **more)
        if done.returncode == 0:
            assert PROGRESS.search(done.stdout + done.stderr), done.stdout + done.stderr
            assert REACHED.search(done.stdout.splitlines()[-1]), done.stdout
        return done

    return run
