"""Fixtures of tests in real processes.

The tests in in_world/ run on every rank of a world that test_worlds.py starts.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.job import NUMPY_HEAD, PERSEUSRUN, Job, Start

Ranks = Callable[..., Job]
Mpirun = Callable[..., Job]


@pytest.fixture
def ranks(run_job: Start) -> Ranks:
    """Returns a function that runs a program with perseus_like.numpy on a number of ranks to its end."""

    def run(size: int, program: str, launcher: Sequence[str] = PERSEUSRUN, **settings: str) -> Job:
        return run_job(size, program, launcher, head=NUMPY_HEAD, **settings)

    return run


@pytest.fixture
def mpirun(run_job: Start) -> Mpirun:
    """Returns a function that runs a program on 4 ranks by MPICH's mpirun to its end."""
    beside = Path(sys.executable).parent / "mpirun"
    program = str(beside) if beside.exists() else shutil.which("mpirun")
    if program is None:
        pytest.skip("no mpirun")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    if "HYDRA" not in version:
        pytest.skip("an mpirun that is not MPICH's")

    def run(text: str, **settings: str) -> Job:
        return run_job(4, text, [program], **settings)

    return run


# The ranks of ALONE are on one host, and the others on the other host.
_SET_HOST_NAME = """
import ctypes, os, socket, sys

CLONE_NEWUTS = 0x04000000
if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUTS) != 0:
    print(f"cannot set its own host name: {os.strerror(ctypes.get_errno())}", flush=True)
    sys.exit()
socket.sethostname("one" if os.environ["PMI_RANK"] in os.environ["ALONE"] else "other")
"""


def run_on_simulated_hosts(mpirun: Mpirun, program: str, alone: str = "1", **environment: str) -> None:
    """Runs a program on four ranks. `alone` are the ranks of the first host, a digit each."""
    world = mpirun(_SET_HOST_NAME + program, ALONE=alone, **environment)
    if "cannot set its own host name" in world.stdout:
        pytest.skip(world.stdout.splitlines()[0])
    assert world.code == 0, world.stderr
    assert all(f"rank {rank} is done" in world.stdout for rank in range(4)), world.stdout
