"""Runs a program on several simulated hosts: the ranks of one machine use different host names."""

from __future__ import annotations

import pytest

from .conftest import Mpirun

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
