"""What belongs to one host, on hosts that are played: ranks of one machine under several names of it."""

from __future__ import annotations

import pytest

from .conftest import Mpirun

# Two hosts of one and three ranks, not in a row.
SCOPES = """
import ctypes, os, socket, sys

CLONE_NEWUTS = 0x04000000
if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUTS) != 0:
    print(f"may not play a host: {os.strerror(ctypes.get_errno())}", flush=True)
    sys.exit()
socket.sethostname("one" if os.environ["PMI_RANK"] == "1" else "other")

import torch
import perseus_like.torch as hvd
from perseus_like.hosts import host_process_set

for session in range(2):
    hvd.init()
    rank = hvd.rank()
    here = [1] if rank == 1 else [0, 2, 3]
    assert (hvd.local_rank(), hvd.local_size()) == (here.index(rank), len(here))
    own = hvd.add_process_set([0, 2, 3]) if session else None  # a set that is there already is taken
    assert host_process_set().ranks == here
    assert own is None or rank == 1 or host_process_set() is own
    batches = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0)).double()
    for scope, sharing in ((0, here), (1, [0, 1, 2, 3])):
        together = hvd.SyncBatchNorm(3, comm_scope=scope).double()
        alone = torch.nn.BatchNorm1d(3).double()
        expected = alone(batches[sharing].flatten(0, 1)).unflatten(0, (len(sharing), 5))[sharing.index(rank)]
        torch.testing.assert_close(together(batches[rank]), expected)
        torch.testing.assert_close(together.running_var, alone.running_var)
    hvd.shutdown()
print(f"rank {rank} is done", flush=True)
"""


def test_batch_normalization_within_a_host(mpirun: Mpirun) -> None:
    pytest.importorskip("torch")
    world = mpirun(SCOPES)
    if "may not play a host" in world.stdout:
        pytest.skip(world.stdout.splitlines()[0])
    assert world.returncode == 0, world.stderr
    assert all(f"rank {rank} is done" in world.stdout for rank in range(4)), world.stdout
