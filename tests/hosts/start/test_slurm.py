"""Tests of jobs that a real Slurm starts on two hosts: by `srun`, and by perseusrun inside an allocation."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.job import succeeded

from ..conftest import with_pmi
from ..slurm_cluster import Run

pytestmark = pytest.mark.slow  # the tests start the daemons of a cluster

PROGRAM = """
import os
import numpy as np
import perseus_like.numpy as hvd
from perseus_like.session import session

hvd.init()
total = hvd.allreduce(np.full(1 << 18, float(hvd.rank())), op=hvd.Sum)
places = f"{hvd.rank()} of {hvd.size()}, {hvd.local_rank()} of {hvd.local_size()}"
assert os.environ["ENGINE"] in session.core.description(), session.core.description()
print(f"rank {places}, {hvd.cross_rank()} of {hvd.cross_size()}: {set(total.tolist())}\\n", end="", flush=True)
"""

KILLED = """
import os, signal
import numpy as np
import perseus_like.numpy as hvd
from perseus_like.errors import PeerLostError

hvd.init()
try:
    hvd.barrier()  # other ranks may still be in it when rank 3 dies
    if hvd.rank() == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    hvd.allreduce(np.ones(1), name="after")
except PeerLostError as error:
    print(f"rank {hvd.rank()} raised {error}\\n", end="", flush=True)
    raise SystemExit(3) from None
"""


@pytest.mark.usefixtures("mpirun")
def test_srun_on_two_hosts(slurm: Run) -> None:
    done = slurm(
        "srun",
        with_pmi(slurm, "pmi2"),
        "-N",
        "2",
        "--ntasks-per-node",
        "2",
        sys.executable,
        "-c",
        PROGRAM,
        ENGINE="mpi (",
    )
    assert done.returncode == 0, done.stdout
    lines = sorted(re.findall(r"rank .*", done.stdout))
    assert lines == [f"rank {rank} of 4, {rank % 2} of 2, {rank // 2} of 2: {{6.0}}" for rank in range(4)], done.stdout


@pytest.mark.usefixtures("ucx")
@pytest.mark.parametrize("has_secret", [False, True])
def test_srun_without_a_pmi_on_two_hosts(slurm: Run, has_secret: bool, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of these tests")
    secret = {"PERSEUS_SECRET_FILE": str(tmp_path / "secret")} if has_secret else {}
    line = ["srun", "--mpi=none", "-N", "2", "--ntasks-per-node", "2", sys.executable, "-c", PROGRAM]
    done = succeeded(slurm(*line, ENGINE="ucx (", **secret))
    lines = sorted(re.findall(r"rank \d of .*", done.stdout))
    assert lines == [f"rank {rank} of 4, {rank % 2} of 2, {rank // 2} of 2: {{6.0}}" for rank in range(4)], done.stdout
    assert done.stdout.count("without a secret") == (0 if has_secret else 1), done.stdout


def test_a_rank_that_is_missing_under_srun_is_named(slurm: Run) -> None:
    program = f"import os; os.environ['SLURM_PROCID'] == '1' or exec({PROGRAM!r})"
    line = ["srun", "--mpi=none", "--kill-on-bad-exit=0", "-N", "2", "-n", "3", sys.executable, "-c", program]
    done = slurm(*line, PERSEUS_START_TIMEOUT="20")
    assert done.returncode != 0
    assert done.stdout.count("ranks of 3 are missing: 1. Rank 0 listens at 10.77.0.1 port") == 2, done.stdout


@pytest.mark.parametrize("shell", ["sbatch", "salloc", "srun"])
def test_a_program_in_the_shell_of_an_allocation_is_alone(slurm: Run, shell: str, tmp_path: Path) -> None:
    program = [sys.executable, "-c", "import perseus_like.numpy as hvd; hvd.init(); print('size', hvd.size())"]
    if shell == "sbatch":
        script = f"#!/bin/sh\n{shlex.join(program)}\n"
        (tmp_path / "job.sh").write_text(script)
        done = slurm("sbatch", "--wait", "--output=out", "-N", "2", "--ntasks-per-node", "2", "job.sh")
        assert "size 1\n" in (tmp_path / "out").read_text(), done.stdout
    else:
        # srun gives the program a terminal.
        line = ["-N", "2", "--ntasks-per-node", "2"] if shell == "salloc" else ["--mpi=none", "--pty"]
        done = slurm("script", "-qec", shlex.join([shell, *line, *program]), "/dev/null")
        assert "size 1" in done.stdout, done.stdout


@pytest.mark.parametrize(("pmi", "needed"), [("pmi2", "mpirun"), ("none", "ucx")])
def test_a_rank_that_is_killed_on_the_other_host(
    slurm: Run, pmi: str, needed: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(needed)
    done = slurm("srun", with_pmi(slurm, pmi), "-N", "2", "--ntasks-per-node", "2", sys.executable, "-c", KILLED)
    assert done.returncode != 0, done.stdout
    raised = set(re.findall(r"rank (\d) raised .*rank 3 on h2", done.stdout))
    assert raised == {"0", "1", "2"}, done.stdout


@pytest.mark.parametrize("transport", ["--mpi", "--gloo"], indirect=True)
def test_perseusrun_in_an_allocation(slurm: Run, transport: str) -> None:
    """perseusrun takes hosts and ranks from the allocation, and starts the ranks without ssh."""
    engine = "mpi (" if transport == "--mpi" else "ucx ("
    launch = [sys.executable, "-m", "perseus_like.launch", transport, "--no-prefix", sys.executable, "-c", PROGRAM]
    done = succeeded(slurm("salloc", "-N", "2", "--ntasks-per-node", "2", *launch, ENGINE=engine))
    assert len(re.findall(r"rank \d of 4, \d of 2, \d of 2: \{6\.0\}", done.stdout)) == 4, done.stdout
