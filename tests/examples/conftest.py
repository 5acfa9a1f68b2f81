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
def run_example() -> Example:
    """Runs an example with these arguments to its end, on two ranks unless said otherwise."""

    def run(path: str, *args: object, ranks: int = 2) -> subprocess.CompletedProcess[str]:
        launcher = [sys.executable, "-m", "perseus_like.launch", "--no-prefix", "-np", str(ranks)]
        command = [sys.executable, str(EXAMPLES / path), *map(str, args)]
        return subprocess.run(
            [*launcher, *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )

    return run
