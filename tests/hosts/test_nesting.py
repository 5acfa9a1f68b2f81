"""Checks that the ranks of a torchrun on each host below the srun of a real Slurm meet."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from .conftest import with_pmi
from .slurm_cluster import Run

pytest.importorskip("torch")
pytestmark = pytest.mark.slow  # the tests start the daemons of a cluster

TRAIN = """
import torch
import perseus_like.torch as hvd

hvd.init()
total = hvd.allreduce(torch.full((3,), hvd.rank() + 1.0), op=hvd.Sum)
print(f"rank {hvd.rank()} of {hvd.size()}: {total.tolist()}\\n", end="", flush=True)
"""
ON_EACH_HOST = ["-N", "2", "-n", "2"]
RENDEZVOUS = ["--rdzv-id", "job", "--rdzv-backend", "c10d", "--rdzv-endpoint", "h1:29500"]


@pytest.fixture
def train(tmp_path: Path) -> str:
    """Returns the file of a Horovod script."""
    (tmp_path / "train.py").write_text(TRAIN)
    return "train.py"


def check(output: str) -> None:
    lines = sorted(re.findall(r"rank \d of \d: \[.*?\]", output))
    assert lines == [f"rank {rank} of 2: [3.0, 3.0, 3.0]" for rank in range(2)], output


@pytest.mark.parametrize("pmi", ["none", "pmi2"])
def test_srun_of_one_torchrun_on_each_host(pmi: str, slurm: Run, train: str) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", *RENDEZVOUS]
    done = slurm("srun", with_pmi(slurm, pmi), *ON_EACH_HOST, *torchrun, train)
    assert done.returncode == 0, done.stdout
    check(done.stdout)
