"""Checks the error for ranks that an mpirun has started but that find no usable MPI library.

The error names the remedy. The ranks must not become several worlds of one rank each.
"""

import importlib.metadata
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

LAUNCHERS = {
    "Open MPI": ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}, "openmpi"),
    "MPICH": ({"PMI_SIZE": "2", "PMI_RANK": "0", "PMI_PORT": "host:1"}, "mpich"),
    "Intel MPI": ({"PMI_SIZE": "2", "PMI_RANK": "0", "I_MPI_HYDRA_UUID": "1"}, "impi"),
}

SYSTEM = (
    *("/usr/local/lib", "/usr/lib64", "/usr/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"),
    *("/usr/lib64/openmpi/lib", "/usr/lib64/mpich/lib"),
)


def prefix_that_hides(folders: Iterable[str]) -> list[str]:
    """Returns a command prefix that hides the MPI libraries in these folders from the command.

    The command runs in its own mount namespace, in which an empty file is mounted over each libmpi.
    """
    found = {file.resolve() for folder in folders for file in Path(folder).glob("libmpi*.so*")}
    if not found:
        return []
    mounts = "; ".join(f"mount --bind /dev/null {shlex.quote(str(file))}" for file in sorted(found))
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", f'{mounts}; exec "$@"', "sh"]
    if shutil.which("unshare") is None or subprocess.run([*words, "true"], check=False).returncode != 0:
        pytest.skip(f"this machine has {sorted(found)}, and no mount namespace can hide them")
    return words


@pytest.fixture
def prefix_that_hides_system_libraries() -> list[str]:
    """Returns a command prefix that hides this machine's MPI, so that a test chooses the libraries that it sees."""
    return prefix_that_hides(SYSTEM)


# With this prefix, the library finds no MPI in the folders of Python.
PROGRAM = """
sys.prefix = "/nowhere"
report(init=outcome_of(hvd.init), running=hvd.is_initialized())
"""


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_missing_library_is_an_error(run: Any, launcher: str, prefix_that_hides_system_libraries: list[str]) -> None:
    marks, extra = LAUNCHERS[launcher]
    hidden = {"wrapper": prefix_that_hides_system_libraries, "PATH": "/nowhere", "LD_LIBRARY_PATH": ""}
    world = run(1, PROGRAM, launcher="", **hidden, **marks).succeeded()
    facts = world.facts_of(0)
    assert facts["running"] is False
    assert "UnavailableError" in facts["init"]["kinds"], facts
    assert launcher in facts["init"]["text"]
    assert "pip install" in facts["init"]["text"]
    assert extra in facts["init"]["text"]


def test_a_hidden_library_is_not_found(run: Any, tmp_path: Path) -> None:
    """A job finds the library without the wrapper and not with it, so the other tests do not depend on the machine."""
    library = tmp_path / "libmpi.so.40"
    library.write_bytes(b"\x7fELF, which names ompi_mpi_comm_world")
    marks, _ = LAUNCHERS["Open MPI"]
    for wrapper in ([], prefix_that_hides([str(tmp_path)])):
        more = {"PATH": "/nowhere", "LD_LIBRARY_PATH": str(tmp_path), **marks}
        text = run(1, PROGRAM, launcher="", wrapper=[*wrapper, *prefix_that_hides(SYSTEM)], **more).facts_of(0)["init"][
            "text"
        ]
        assert ("no libmpi of Open MPI" in text) == bool(wrapper), text
        assert (str(library) in text) != bool(wrapper), text


def test_the_library_of_another_mpi_is_an_error(run: Any, prefix_that_hides_system_libraries: list[str]) -> None:
    try:
        importlib.metadata.version("mpich")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the wheel mpich is not installed")
    marks, _ = LAUNCHERS["Open MPI"]
    program = "report(init=outcome_of(hvd.init))\n"
    world = run(1, program, launcher="", wrapper=prefix_that_hides_system_libraries, **marks).succeeded()
    init = world.facts_of(0)["init"]
    assert "UnavailableError" in init["kinds"]
    assert "Open MPI" in init["text"]
    assert "MPICH" in init["text"]


@pytest.mark.packaging
def test_variables_of_an_mpirun_that_does_not_run(run: Any, environment_with: Callable[[str], Path]) -> None:
    """`init` raises an error. MPI_Init of Open MPI would end the process, with a message about a remote shell."""
    (library, *_) = sorted(environment_with("openmpi").glob("lib/**/libmpi.so.*"))
    marks, _ = LAUNCHERS["Open MPI"]
    program = "report(init=outcome_of(hvd.init), running=hvd.is_initialized())\n"
    world = run(1, program, launcher="", PERSEUS_MPI_LIBRARY=str(library), PATH="/nowhere", **marks).succeeded()
    facts = world.facts_of(0)
    assert facts["running"] is False
    assert "UnavailableError" in facts["init"]["kinds"], facts
    assert "PMIX_NAMESPACE" in facts["init"]["text"]
    assert "OMPI_COMM_WORLD_SIZE=2" in facts["init"]["text"]
    assert "plm_rsh_agent" not in world.output
