"""Starts worlds whose ranks share one GPU, and runs the tests of in_world/ on them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.job import run_to_end

torch = pytest.importorskip("torch")

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# NCCL refuses two ranks on one GPU unless they seem to be on two hosts. Sockets connect the two hosts.
APART = """
import os, sys
os.environ["NCCL_HOSTID"] = "rank " + os.environ["PERSEUS_RANK"]
os.execv(sys.argv[1], sys.argv[1:])
"""


pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")


@pytest.mark.parametrize(("size", "nccl"), [(1, True), (2, True), (2, False)], ids=["1", "2", "2_by_host"])
def test_on_all_ranks(size: int, nccl: bool, tmp_path: Path) -> None:
    variables = {"PERSEUS_IN_WORLD": "1", "NCCL_NET": "Socket"}
    if not nccl:
        variables["PERSEUS_NCCL_LIBRARY"] = str(tmp_path / "none.so")
    world = run_to_end(
        [
            *[sys.executable, "-m", "perseus_like.launch", "-np", str(size), sys.executable, "-c", APART],
            *[sys.executable, "-m", "pytest", "-x", "-q", "-s", "-rs", "-p", "no:cacheprovider", "-p", "no:tmpdir"],
            *["--no-header", "--tb=short", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)],
            str(HERE / "in_world"),
        ],
        tmp_path,
        joined=True,
        **variables,
    )
    output = world.stdout[-12000:]
    assert world.returncode == 0, output
    assert len(re.findall(r"\d+ passed", world.stdout)) == size, output
    assert ("through host memory" in world.stdout) == (not nccl and size > 1), output


def test_training_goes_on_after_a_rank_is_lost(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "perseus_like.launch", "-np", "2", "--min-np", "1", "-H", "localhost:2"]
    job = run_to_end([*launcher, sys.executable, str(HERE / "elastic_training.py")], tmp_path, NCCL_NET="Socket")
    assert job.returncode == 0, job.stderr
    assert "END of rank 0 of 1, step 20, weights 0.8000 to 0.8000" in job.stdout, job.stdout + job.stderr
