"""Checks that the other ranks raise an error if a rank dies while ranks of two hosts connect without an mpirun."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.job import LIMIT_SECONDS, needs

from .conftest import TestBeds

needs("torch")

# Rank 0 kills itself in a certain exchange after it has opened a library. Rank 2 serves the store, which outlives it.
PROGRAM = """
import os, signal, sys
from datetime import timedelta
from pathlib import Path
import torch.distributed as dist
if not hasattr(dist.Backend, "PERSEUS"):  # torch before 2.5 does not load the backend by itself
    import perseus_like.torch.distributed
from perseus_like.torch.distributed.rendezvous import StoreRendezvous

rank, size, last = int(sys.argv[1]), 4, int(sys.argv[3])
store = dist.TCPStore(sys.argv[2], 29500, is_master=rank == 2, wait_for_workers=False)
exchange, rounds = StoreRendezvous.__call__, 0

def counted(self, mine):
    global rounds
    rounds += sys.argv[4] in Path("/proc/self/maps").read_text()
    if rank == 0 and rounds == last:
        os.kill(os.getpid(), signal.SIGKILL)
    return exchange(self, mine)

StoreRendezvous.__call__ = counted
try:
    dist.init_process_group("perseus", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=600))
    print("up", rounds, flush=True)
except Exception as error:
    print("raised", type(error).__name__, error, flush=True)
    store.add("raised", 1)
    while rank == 2 and store.add("raised", 0) < 3:
        pass
# A thread of MPI may still wait, so the process must not end in order.
os._exit(0)
"""


# After libmpi is open, the ranks exchange the name of their MPI, the messages of MPI_Init, and its outcome. After
# libucp is open, they exchange its version, whether all could make connections, and their addresses.
@pytest.mark.parametrize(
    ("exchange", "engine"),
    [
        pytest.param(1, "MPI", marks=pytest.mark.slow),
        (2, "MPI"),
        *(pytest.param(number, "MPI", marks=pytest.mark.slow) for number in (3, 4)),
        *(pytest.param(number, "UCX", marks=pytest.mark.slow) for number in (1, 2, 3)),
    ],
    indirect=["engine"],
)
def test_survivors_raise(exchange: int, engine: str, test_beds: TestBeds, tmp_path: Path) -> None:
    test_bed = test_beds(2)
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    address, library = test_bed.address("h2"), "libucp" if engine == "UCX" else "libmpi"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PERSEUS_START_TIMEOUT": "600"}
    ranks = [
        subprocess.Popen(
            test_bed.command(
                f"h{1 + rank // 2}",
                [sys.executable, str(program), str(rank), address, str(exchange), library],
                tmp_path,
            ),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(4)
    ]
    try:
        outputs = [rank.communicate(timeout=LIMIT_SECONDS)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert ranks[0].returncode == -9, outputs[0]
    for text in outputs[1:]:
        assert "raised PeerLostError" in text, outputs
