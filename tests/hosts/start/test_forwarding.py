"""Checks that ranks on another host have their own host's environment and the variables that perseusrun forwards."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.job import run_to_end, succeeded

from ..conftest import TestBeds

PROGRAM = """
import os, socket
names = ["HOME", "SSH_AUTH_SOCK", "XDG_RUNTIME_DIR", "SLURM_JOB_ID", "MINE", "SECRET", "FI_PROVIDER"]
print(socket.gethostname(), [os.environ.get(name) for name in names])
"""


@pytest.mark.usefixtures("mpirun")
def test_only_requested_variables_are_forwarded(test_beds: TestBeds, tmp_path: Path) -> None:
    test_bed = test_beds(2)
    # Like an ssh session, this remote shell has its own environment.
    shell = tmp_path / "shell"
    shell.write_text(f'#!/bin/sh\nexec env -i HOME=/of/h2 PATH=/usr/bin:/bin {test_bed.remote_shell} "$@"\n')
    shell.chmod(0o755)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    bound_to_h1: dict[str, Any] = dict.fromkeys(("HOME", "SSH_AUTH_SOCK", "XDG_RUNTIME_DIR", "SLURM_JOB_ID"), "of h1")
    options = ["--mpi", "--remote-shell", str(shell), "-x", "SECRET=hush"]
    command = [*test_bed.perseusrun({"h1": 1, "h2": 1}, *options), sys.executable, program]
    done = succeeded(run_to_end(command, tmp_path, MINE="mine", **bound_to_h1))
    provider = os.environ.get("FI_PROVIDER", "tcp")
    assert sorted(done.stdout.splitlines()) == [
        f"[0]<stdout>:h1 {[*['of h1'] * 4, 'mine', 'hush', provider]}",
        f"[1]<stdout>:h2 {['/of/h2', None, None, None, 'mine', 'hush', provider]}",
    ]
