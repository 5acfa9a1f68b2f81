"""Compiles the process group in C++, and compares it with the group in Python in jobs of real processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.job import Start, succeeded

from .test_worlds import FILES

pytestmark = pytest.mark.xdist_group("native group")  # one worker compiles the module for all
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PROGRAM = HERE / "native_group_program.py"
BUILD = [sys.executable, "-m", "perseus_like.torch.build_group"]


def build(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # ninja may lie beside Python
    environment = {**os.environ, "PATH": path, "TORCH_EXTENSIONS_DIR": str(folder)}
    return subprocess.run(
        [*BUILD, *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


@pytest.fixture(scope="session")
def extensions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder of torch's extensions with the module in it."""
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no compiler {compiler}")
    folder = tmp_path_factory.mktemp("extensions")
    assert build(["--check"], folder).returncode == 1
    succeeded(build([], folder))
    checked = succeeded(build(["--check"], folder))
    assert "is used" in checked.stdout
    return folder


@pytest.fixture
def outcomes(extensions: Path, run_job: Start) -> Callable[[list[str]], list[list[str]]]:
    """Returns a function that runs the program with a mode for each rank, and returns the lines of each rank."""

    def run(modes: list[str]) -> list[list[str]]:
        done = run_job(
            len(modes), arguments=[PROGRAM, *modes], joined=True, TORCH_EXTENSIONS_DIR=str(extensions)
        ).succeeded()
        return [(done.folder / f"rank{rank}").read_text().splitlines() for rank in range(len(modes))]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_results_and_errors_are_those_of_the_group_in_python(
    size: int, outcomes: Callable[[list[str]], list[list[str]]]
) -> None:
    """Ranks with and without the module may be in one job."""
    expected = outcomes(["off"] * size)
    assert outcomes(["on"] * size) == expected
    assert outcomes(["on", "off"] * (size // 2)) == expected


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["test_tensors_without_memory.py"], id="tensors-without-memory", marks=pytest.mark.slow),
        pytest.param(FILES, id="all", marks=pytest.mark.slow),
    ],
)
def test_the_tests_of_groups_pass(names: list[str], extensions: Path, run_job: Start) -> None:
    files = [str(HERE / "in_world" / file) for file in names]
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:tmpdir", "--no-header", "--tb=short"]
    command = ["-m", "pytest", *options, "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), *files]
    settings = {"PERSEUS_IN_WORLD": "1", "TORCH_EXTENSIONS_DIR": str(extensions), "EXPECTED_GROUP": "C++"}
    world = run_job(2, arguments=command, joined=True, **settings)
    assert world.code == 0, world.output[-60000:]


@pytest.mark.slow
def test_a_killed_rank_ends_the_wait(extensions: Path, program: Start) -> None:
    done = program(
        "perseusrun",
        2,
        """
        import signal
        from perseus_like.torch.native_group import native
        assert native is not None
        dist.init_process_group("perseus", timeout=timedelta(seconds=100))
        name = dist.group.WORLD.group_name
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        for call in (dist.all_reduce, lambda t: torch.ops._c10d_functional.wait_tensor(
            torch.ops._c10d_functional.all_reduce_(t, "sum", name))):
            try:
                call(torch.ones(3))
            except Exception as error:
                report(type(error).__name__, error)
        """,
        TORCH_EXTENSIONS_DIR=str(extensions),
    )
    first, second = done.reports_of(0).splitlines()
    for line in (first, second):
        assert line.startswith("PeerLostError")
        assert "rank 1" in line


def test_a_module_for_another_torch_is_reported_and_not_used(program: Start, tmp_path: Path) -> None:
    other = tmp_path / "extensions" / "perseus_group" / "torch-2.0.0"
    other.mkdir(parents=True)
    (other / "perseus_group.so").touch()
    done = program(
        "perseusrun",
        2,
        """
        from perseus_like.torch.native_group import native
        assert native is None
        dist.init_process_group("perseus")
        dist.destroy_process_group()
        """,
        TORCH_EXTENSIONS_DIR=str(tmp_path / "extensions"),
    ).succeeded()
    assert done.stdout.count("it was compiled for torch-2.0.0, and this process needs torch-") == 1, done.stdout


@pytest.mark.slow
def test_a_damaged_module_is_reported_and_not_used(extensions: Path, program: Start, tmp_path: Path) -> None:
    copy = tmp_path / "extensions"
    shutil.copytree(extensions, copy)
    (file,) = copy.rglob("*.so")
    file.write_bytes(b"no library")
    done = program("perseusrun", 1, 'dist.init_process_group("perseus")', TORCH_EXTENSIONS_DIR=str(copy)).succeeded()
    assert "the process group in C++ is not used, because" in done.stdout


@pytest.mark.slow
def test_remove(tmp_path: Path) -> None:
    module = tmp_path / "perseus_group" / "torch-2.0.0" / "perseus_group.so"
    module.parent.mkdir(parents=True)
    module.touch()
    assert build(["--remove"], tmp_path).returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_without_a_compiler_the_command_fails_with_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    done = build([], tmp_path)
    assert done.returncode == 1
    assert "It needs a C++ compiler" in done.stdout
