"""Checks how launchers that start the core's sessions are recognised, by the variables that each of them sets."""

from __future__ import annotations

import os

import pytest
from perseus_like_autoload import LAUNCHER_VARIABLES

from perseus_like.launchers import LAUNCHERS, TORCHRUN, OwnLauncher, own

# The variables are those of runs of Open MPI, prterun, MPICH, Intel MPI and Slurm, and by their sources those of flux
# (src/shell/pmi/pmi.c of flux-core) and MVAPICH (chapter "MPIRUN_RSH Parameters" of the MVAPICH2 user guide).
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "9", "HYDI_CONTROL_FD": "7"}
SRUN = {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4"}
PERSEUSRUN = {"PERSEUS_RANK": "0", "PERSEUS_SIZE": "4", "PERSEUS_RENDEZVOUS": "x"}
MPICHS = OwnLauncher("mpich", 1, 2, "PMI_SIZE=2", "")

FOUND: dict[str, tuple[dict[str, str], OwnLauncher | None]] = {
    "nobody": ({}, None),
    "perseusrun": (PERSEUSRUN, OwnLauncher("perseusrun", 0, 4, "PERSEUS_SIZE=4", "x")),
    "Open MPI": (
        {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_RANK": "3", "PMIX_NAMESPACE": "n"},
        OwnLauncher("openmpi", 3, 4, "OMPI_COMM_WORLD_SIZE=4", ""),
    ),
    "prterun": (
        {"PMIX_RANK": "1", "PMIX_NAMESPACE": "prterun-1"},
        OwnLauncher("openmpi", 1, -1, "PMIX_NAMESPACE=prterun-1", ""),
    ),
    "MPICH": (MPICH, MPICHS),
    "MPICH beside a user's settings of Intel MPI": ({**MPICH, "I_MPI_ROOT": "/opt/intel"}, MPICHS),
    "MPICH inside Slurm": ({**SRUN, **MPICH}, MPICHS),
    "MPICH inside perseusrun": ({**PERSEUSRUN, **MPICH}, MPICHS),
    "Intel MPI": (
        {"PMI_RANK": "0", "PMI_SIZE": "2", "I_MPI_HYDRA_UUID": "e3"},
        OwnLauncher("intel", 0, 2, "PMI_SIZE=2", ""),
    ),
    "flux": ({"PMI_RANK": "0", "PMI_SIZE": "2"}, OwnLauncher("mpich", 0, 2, "PMI_SIZE=2", "")),
    "MVAPICH": (
        {"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "8"},
        OwnLauncher("mpich", 1, 8, "MV2_COMM_WORLD_SIZE=8", ""),
    ),
    "srun with PMI-2": (
        {**SRUN, "PMI_RANK": "2", "PMI_SIZE": "4", "PMI_FD": "8"},
        OwnLauncher("slurm", 2, 4, "PMI_SIZE=4", ""),
    ),
    "srun with PMIx": (
        {**SRUN, "PMIX_RANK": "2", "PMIX_NAMESPACE": "s"},
        OwnLauncher("slurm", 2, 4, "SLURM_STEP_NUM_TASKS=4", ""),
    ),
    "srun with PMI-1": (
        {**SRUN, "I_MPI_PMI_LIBRARY": "libpmi.so"},
        OwnLauncher("slurm", 2, 4, "SLURM_STEP_NUM_TASKS=4", ""),
    ),
    "srun without a PMI": (SRUN, None),
    "a shell of an allocation": (
        {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "I_MPI_PMI_LIBRARY": "libpmi.so"},
        None,
    ),
}
WRONG = [
    ({"PMI_RANK": "2", "PMI_SIZE": "2"}, "PMI_RANK=2 contradicts PMI_SIZE=2"),
    ({"PMI_RANK": "0", "PMI_SIZE": "two"}, "PMI_SIZE='two' is no number"),
    ({"PMI_RANK": "0", "PMI_SIZE": "0"}, "PMI_RANK=0 contradicts PMI_SIZE=0"),
    ({"PERSEUS_SIZE": "2", "PERSEUS_RENDEZVOUS": "x"}, "PERSEUS_RANK='' is no number"),
]


@pytest.fixture
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("PMI", "OMPI_", "MV2_", "SLURM_", "PERSEUS_", "I_MPI_", "HYD", "MPI_")):
            monkeypatch.delenv(name)


@pytest.mark.usefixtures("no_variables")
@pytest.mark.parametrize(("variables", "expected"), FOUND.values(), ids=FOUND)
def test_it_is_recognised(
    variables: dict[str, str], expected: OwnLauncher | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert own() == expected


@pytest.mark.usefixtures("no_variables")
@pytest.mark.parametrize(("variables", "text"), WRONG, ids=[text for _, text in WRONG])
def test_contradictions_are_errors(variables: dict[str, str], text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=text):
        own()


def test_torch_looks_for_each_launcher_whose_ranks_meet() -> None:
    """torch loads perseus_like_autoload in every program, so its list is its own."""
    for launcher in LAUNCHERS:
        if launcher is not TORCHRUN and not launcher.meet.startswith("an error"):
            assert {launcher.rank, launcher.size, *launcher.also} & set(LAUNCHER_VARIABLES), launcher.name
