"""Checks that all collectives of eight ranks finish under each MPI, on one host with fewer cores and on four hosts."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.job import run_to_end

from .conftest import TestBeds

pytestmark = pytest.mark.packaging

RANKS = 8
# The limit only ends a hang. docs/decisions/the-launcher.md has the times that the tests take.
SMOKE = Path(__file__).with_name("smoke.py")

# Options that each MPI's own mpirun needs on a machine with fewer cores than ranks.
OVERSUBSCRIBED: dict[str, tuple[list[str], dict[str, str]]] = {
    "mpich": ([], {}),
    "openmpi": (["--oversubscribe"], {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}),
    "impi": ([], {"I_MPI_PIN": "0"}),
}
OTHER_MPIS = re.compile(r"(OMPI|PMIX|PRTE|PMI|I_MPI|MPI|HYDRA|HYDI|FI)_|(LD_LIBRARY_PATH|PYTHONPATH|VIRTUAL_ENV)$")

every_mpi = pytest.mark.parametrize("mpi", OVERSUBSCRIBED)


@pytest.fixture
def finishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Returns a function that runs a command in the environment of one MPI and checks that all ranks have finished."""

    def check(folder: Path, command: list[object], **variables: Any) -> None:
        for name in filter(OTHER_MPIS.match, list(os.environ)):
            monkeypatch.delenv(name)
        path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        done = run_to_end(command, tmp_path, PATH=path, **variables)
        output = f"{done.stdout}\n{done.stderr}"
        assert done.returncode == 0, output
        for rank in range(RANKS):
            assert f"rank {rank} of {RANKS} is done" in done.stdout, output

    return check


@pytest.mark.parametrize(
    ("launcher", "mpi"),
    [
        ("mpirun", "mpich"),
        ("perseusrun", "openmpi"),
        pytest.param("perseusrun", "mpich", marks=pytest.mark.slow),
        pytest.param("mpirun", "openmpi", marks=pytest.mark.slow),
        pytest.param("mpirun", "impi", marks=pytest.mark.slow),
        pytest.param("perseusrun", "impi", marks=pytest.mark.slow),
    ],
)
def test_eight_ranks_on_one_host(
    launcher: str, mpi: str, environment_with: Callable[[str], Path], finishes: Callable[..., None]
) -> None:
    folder = environment_with(mpi)
    python = folder / "bin" / "python"
    options, variables = OVERSUBSCRIBED[mpi]
    lines: dict[str, list[object]] = {
        "mpirun": [folder / "bin" / "mpirun", *options],
        "perseusrun": [python, "-m", "perseus_like.launch", "--mpi"],
    }
    finishes(folder, [*lines[launcher], "-np", RANKS, python, SMOKE], **variables)


@pytest.mark.slow
@every_mpi
def test_eight_ranks_on_four_hosts(
    mpi: str,
    test_beds: TestBeds,
    environment_with: Callable[[str], Path],
    finishes: Callable[..., None],
    tmp_path: Path,
) -> None:
    test_bed = test_beds(4)
    folder = environment_with(mpi)
    python = str(folder / "bin" / "python")
    line = test_bed.perseusrun(dict.fromkeys(test_bed.hosts, RANKS // 4), folder=tmp_path)
    finishes(folder, [python if word == sys.executable else word for word in line] + [python, SMOKE])
