"""Checks what `import perseus_like.mxnet` says if the installed MXNet cannot be imported."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.job import LIMIT_SECONDS

# Python 3.12 and later have no distutils, which MXNet imports.
PROGRAM = "import sys; sys.modules['distutils'] = None; import perseus_like.mxnet"


def test_an_mxnet_that_cannot_be_imported(environment: Callable[[str], Path]) -> None:
    command = [str(environment("mxnet")), "-W", "ignore", "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    error = done.stderr.splitlines()[-1]
    assert error.startswith("ImportError: perseus_like.mxnet: MXNet cannot be imported (")
    assert "distutils" in error
    assert "pip install numpy==1.23.5" in error
