"""Starts an example on two ranks, as its own first lines say."""

from __future__ import annotations

import re
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


# An example shows that it goes on, and says in its last line what it has reached.
PROGRESS = re.compile(r"(epoch|step)\W*\d|\[\d+\]|Iter #\d|\d/\d", re.IGNORECASE)
REACHED = re.compile(
    r"\d.*(accuracy|right|points near|bits per character|img/sec|images per second|Acc@1)|"
    r"(accuracy|right|vote|Acc@1|img/sec|most|time of an epoch).*\d",
    re.IGNORECASE,
)


@pytest.fixture
def run_example(run_program: Example) -> Example:
    """The same for a program of examples/, and checks what every example shows."""

    def run(path: str, *args: object, **more: int) -> subprocess.CompletedProcess[str]:
        done = run_program(EXAMPLES / path, *args, **more)
        if done.returncode == 0:
            assert PROGRESS.search(done.stdout + done.stderr), done.stdout + done.stderr
            assert REACHED.search(done.stdout.splitlines()[-1]), done.stdout
        return done

    return run
