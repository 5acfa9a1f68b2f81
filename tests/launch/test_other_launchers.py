"""Checks that ranks of launchers which the core does not know meet, or get an error: never a job of one rank."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from perseus_like.launchers import LAUNCHERS
from tests.job import LIMIT_SECONDS, Start

PRINT_SIZE = "import perseus_like.numpy as hvd; hvd.init(); print('size', hvd.size())"
# Ranks of these launchers were seen with these variables.
SEVERAL = {
    "horovod": {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2", "HOROVOD_CONTROLLER": "gloo"},
    "flux": {"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "2", "FLUX_TASK_LOCAL_ID": "0"},
    "jsrun": {"JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_SIZE": "2", "JSM_NAMESPACE_LOCAL_RANK": "1"},
    "pals": {"PALS_RANKID": "0", "PALS_LOCAL_RANKID": "0", "PALS_NODEID": "0", "PALS_APID": "1"},
    "torch variables without an address": {"RANK": "0", "WORLD_SIZE": "2"},
    "tensorflow": {"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}'},
}
ONE = {
    "torchrun of one": {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"},
    "flux of one": {"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "1"},
    "tensorflow of one": {"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'},
    "a broken TF_CONFIG": {"TF_CONFIG": "{"},
}


def python(program: str, folder: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


@pytest.mark.parametrize("launcher", SEVERAL)
def test_ranks_that_cannot_meet_get_an_error(launcher: str, tmp_path: Path) -> None:
    variables = SEVERAL[launcher]
    done = python(PRINT_SIZE, tmp_path, variables)
    assert done.returncode != 0, done.stdout
    last = done.stderr.splitlines()[-1]
    assert any(f"{name}={value}" in last for name, value in variables.items()), done.stderr
    assert "perseusrun" in last
    assert "PERSEUS_ALONE=1" in last
    alone = python(PRINT_SIZE, tmp_path, {**variables, "PERSEUS_ALONE": "1"})
    assert alone.stdout == "size 1\n", alone.stderr


@pytest.mark.parametrize("launcher", ONE)
def test_one_rank_is_alone(launcher: str, tmp_path: Path) -> None:
    done = python(PRINT_SIZE, tmp_path, ONE[launcher])
    assert done.stdout == "size 1\n", done.stderr


def test_a_rank_of_perseusrun_may_be_alone(run_job: Start) -> None:
    done = run_job(2, PRINT_SIZE.replace("; ", "\n"), joined=True, PERSEUS_ALONE="1")
    assert done.stdout.count("size 1") == 2, done.output


def test_ranks_of_torchrun_meet(run_job: Start) -> None:
    """Three sessions one after the other, by the same store."""
    pytest.importorskip("torch")
    done = run_job(
        2,
        """
        import numpy as np
        import perseus_like.numpy as hvd

        for session in range(3):
            hvd.init()
            total = hvd.allreduce(np.full(3, hvd.rank() + 1.0), op=hvd.Sum)
            print(f"rank {hvd.rank()} of {hvd.size()}: {total.tolist()}", flush=True)
            hvd.shutdown()
        """,
        "torchrun",
    )
    for rank in range(2):
        assert done.stdout.count(f"rank {rank} of 2: [3.0, 3.0, 3.0]") == 3, done.output


def test_ranks_of_srun_meet_by_the_store_that_their_program_names(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    port = os.environ["PET_MASTER_PORT"]  # which tests/conftest.py holds for this process
    common = {"SLURM_STEP_NUM_TASKS": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    with ThreadPoolExecutor(2) as threads:
        variables = [{**common, "SLURM_PROCID": str(rank), "RANK": str(rank)} for rank in range(2)]
        ranks = list(threads.map(lambda each: python(PRINT_SIZE, tmp_path, each), variables))
    assert [rank.stdout for rank in ranks] == ["size 2\n"] * 2, ranks


def test_a_rank_without_the_others_says_so(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "PERSEUS_START_TIMEOUT": "1"}
    done = python(PRINT_SIZE, tmp_path, {**variables, "MASTER_PORT": os.environ["PET_MASTER_PORT"]})
    assert "TimedOutError: timed out: init(): rank 0 of 2 does not meet the others" in done.stderr, done.stderr


@pytest.mark.slow  # another two imports of torch
def test_ranks_of_a_torchrun_below_an_mpirun_meet(run_job: Start) -> None:
    pytest.importorskip("torch")
    done = run_job(
        2,
        PRINT_SIZE.replace("; ", "\n"),
        "torchrun",
        wrapper=[str(Path(sys.executable).with_name("mpirun")), "-np", "1"],
    )
    assert done.stdout.count("size 2") == 2, done.output


def test_a_process_that_a_rank_starts_gets_an_error(run_job: Start) -> None:
    done = run_job(
        2,
        f"""
        import subprocess, sys
        import perseus_like.numpy as hvd

        hvd.init()
        child = subprocess.run([sys.executable, "-c", {PRINT_SIZE!r}], capture_output=True, text=True)
        assert f"started by rank {{hvd.rank()}} (pid " in child.stderr, child.stderr
        nested = [sys.executable, "-m", "perseus_like.launch", "-np", "2", sys.executable, "-c", {PRINT_SIZE!r}]
        child = subprocess.run(nested, capture_output=True, text=True)
        assert child.stdout.count("size 2") == 2, child.stderr
        hvd.barrier()
        """,
    )
    assert done.code == 0, done.output


def test_the_document_has_all_launchers() -> None:
    page = (Path(__file__).parents[2] / "docs" / "launching.md").read_text()
    for launcher in LAUNCHERS:
        assert f"`{launcher.rank}`" in page
        assert not launcher.size or f"`{launcher.size}`" in page
