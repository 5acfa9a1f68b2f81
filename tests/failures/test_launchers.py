"""Started by an mpirun, but no library to speak with its ranks: said, with the remedy; never two worlds of one."""

import importlib.metadata
from typing import Any

import pytest

LAUNCHERS = {
    "Open MPI": ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}, "openmpi"),
    "MPICH": ({"PMI_SIZE": "2", "PMI_RANK": "1", "PMI_PORT": "host:1"}, "mpich"),
    "Intel MPI": ({"PMI_SIZE": "2", "PMI_RANK": "0", "I_MPI_HYDRA_UUID": "1"}, "impi"),
}

# Nothing of MPI is found in this Python, nor by the loader.
PROGRAM = """
from pathlib import Path
system = [folder for folder in ("/usr/local/lib", "/usr/lib64", "/usr/lib", "/usr/lib/x86_64-linux-gnu",
                                "/usr/lib/aarch64-linux-gnu", "/usr/lib64/openmpi/lib", "/usr/lib64/mpich/lib")
          if list(Path(folder).glob("libmpi*.so*"))]
tell(system=system)
sys.prefix = "/nowhere"
tell(init=outcome_of(hvd.init), running=hvd.is_initialized())
"""


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_no_library(run: Any, launcher: str) -> None:
    marks, extra = LAUNCHERS[launcher]
    world = run(1, PROGRAM, launched=False, PATH="/nowhere", LD_LIBRARY_PATH="", **marks)
    assert world.code == 0, world.output
    facts = world.told(0)
    if facts["system"]:
        pytest.skip(f"this machine has an MPI in {facts['system']}")
    assert facts["running"] is False
    assert "UnavailableError" in facts["init"]["kinds"], facts
    assert launcher in facts["init"]["text"]
    assert "pip install" in facts["init"]["text"]
    assert extra in facts["init"]["text"]


def test_the_library_of_another_mpi(run: Any) -> None:
    try:
        importlib.metadata.version("mpich")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the wheel mpich is not installed")
    marks, _ = LAUNCHERS["Open MPI"]
    world = run(1, "tell(init=outcome_of(hvd.init))\n", launched=False, **marks)
    assert world.code == 0, world.output
    init = world.told(0)["init"]
    assert "UnavailableError" in init["kinds"]
    assert "Open MPI" in init["text"]
    assert "MPICH" in init["text"]
