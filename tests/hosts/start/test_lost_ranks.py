"""Checks that the other ranks raise an error if a rank dies while UCX connects the ranks of two hosts."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from tests.job import needs, outputs_of, start_process

from ..conftest import TestBeds

needs("torch")

# Rank 0 kills itself in a certain exchange after it has opened UCX. Rank 2 serves the store, which outlives it.
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
    rounds += "libucp" in Path("/proc/self/maps").read_text()
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
"""


# The ranks exchange the version of UCX, whether all could make connections, and their addresses.
@pytest.mark.usefixtures("ucx")
@pytest.mark.parametrize(
    "exchange", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)]
)
def test_survivors_raise(exchange: int, test_beds: TestBeds, tmp_path: Path) -> None:
    test_bed = test_beds(2)
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    address = test_bed.address("h2")
    ranks = []
    for rank in range(4):
        command = [sys.executable, str(program), str(rank), address, str(exchange)]
        line = test_bed.command(f"h{1 + rank // 2}", command, tmp_path)
        ranks.append(start_process(line, PERSEUS_START_TIMEOUT="600"))
    try:
        outputs = outputs_of(ranks)
    finally:
        for each in ranks:
            each.kill()
    assert ranks[0].returncode == -9, outputs[0]
    for text in outputs[1:]:
        assert "raised PeerLostError" in text, outputs
