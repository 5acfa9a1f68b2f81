"""Checks that ranks of a launcher below another launcher, and children of ranks with a store of their own, meet."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.job import needs, run_to_end

needs("torch")
pytestmark = [pytest.mark.slow, pytest.mark.packaging]  # environments with other MPIs, and many imports of torch

# Options and variables that an mpirun needs to run more ranks than cores, as root, on one host.
MPIRUNS: dict[str, tuple[list[str], dict[str, str]]] = {
    "mpich": ([], {}),
    "openmpi": (["--oversubscribe"], {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}),
    "impi": ([], {"I_MPI_PIN": "0"}),
}
TRAIN = """
import torch
import perseus_like.torch as hvd

hvd.init()
total = hvd.allreduce(torch.full((3,), hvd.rank() + 1.0), op=hvd.Sum)
print(f"rank {hvd.rank()} of {hvd.size()}: {total.tolist()}\\n", end="", flush=True)
"""
# Each rank of the mpirun starts a process and gives it another rank and a store of its own.
PARENT = """
import os, subprocess, sys

OWN_SESSION
rank = next(int(os.environ[name]) for name in ("PMI_RANK", "OMPI_COMM_WORLD_RANK") if name in os.environ)
store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ["PET_MASTER_PORT"]}
variables = {**os.environ, **store, "RANK": str(1 - rank), "WORLD_SIZE": "2"}
code = subprocess.run([sys.executable, "train.py"], env=variables).returncode
hvd and hvd.barrier()
sys.exit(code)
"""


@pytest.fixture(params=MPIRUNS)
def mpirun(
    request: pytest.FixtureRequest, environment_with: Callable[[str], Path], tmp_path: Path
) -> Callable[..., str]:
    """Returns a function that runs a program on two ranks of an mpirun, and returns the output."""
    folder = environment_with(request.param)
    options, variables = MPIRUNS[request.param]
    (tmp_path / "train.py").write_text(TRAIN)

    def run(*words: str) -> str:
        done = run_to_end([folder / "bin" / "mpirun", *options, "-np", "2", *words], tmp_path, joined=True, **variables)
        assert done.returncode == 0, done.stdout
        return done.stdout

    return run


def check(output: str) -> None:
    lines = sorted(re.findall(r"rank \d of \d: \[.*?\]", output))
    assert lines == [f"rank {rank} of 2: [3.0, 3.0, 3.0]" for rank in range(2)], output


def test_one_torchrun_for_each_rank_of_an_mpirun(mpirun: Callable[..., str]) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    place = f"127.0.0.1:{os.environ['PET_MASTER_PORT']}"
    check(mpirun(*torchrun, "--rdzv-id", "job", "--rdzv-backend", "c10d", "--rdzv-endpoint", place, "train.py"))


@pytest.mark.parametrize("has_session", [False, True])
def test_children_of_the_ranks_of_an_mpirun_make_a_world(
    has_session: bool, mpirun: Callable[..., str], tmp_path: Path
) -> None:
    session = "import perseus_like.numpy as hvd; hvd.init()" if has_session else "hvd = None"
    (tmp_path / "parent.py").write_text(PARENT.replace("OWN_SESSION", session))
    check(mpirun(sys.executable, "parent.py"))


def test_a_child_inherits_the_store_that_its_rank_sets(tmp_path: Path) -> None:
    """perseus_like.torch.run sets torchrun's variables in the ranks of an mpirun."""
    (tmp_path / "child.py").write_text("import perseus_like.numpy as hvd; hvd.init(); print('size', hvd.size())")
    (tmp_path / "parent.py").write_text("import subprocess, sys; subprocess.run([sys.executable, 'child.py'])")
    ranks = [sys.executable, "-m", "perseus_like.torch.run", "parent.py"]
    done = run_to_end([Path(sys.executable).with_name("mpirun"), "-np", "2", *ranks], tmp_path, joined=True)
    assert len(re.findall(r"started by rank \d \(pid ", done.stdout)) == 2, done.stdout
    assert "size 2" not in done.stdout
