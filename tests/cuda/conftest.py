"""Fixtures that start worlds without a GPU. Libraries of tests/cpp take the place of CUDA's driver and of NCCL."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.job import run_to_end

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILT = ROOT / "build" / "core" / "tests" / "cpp"
DRIVER = BUILT / "fake_cuda"

Done = subprocess.CompletedProcess[str]
World = Callable[..., Done]


@pytest.fixture(scope="session")
def nccl() -> Path:
    """Returns the path of a library that takes the place of NCCL in worlds of one rank."""
    return BUILT / "fake_nccl" / "libnccl.so.2"


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Returns a function that runs a Python command on all ranks, with the pretended driver and without NCCL."""

    def run(size: int, *command: str, driver: Path = DRIVER, **environment: str) -> Done:
        if not (DRIVER / "libcuda.so.1").exists():
            pytest.skip("no pretended driver; `make cpp-tests` builds it")
        variables = {
            "LD_LIBRARY_PATH": f"{driver}:{os.environ.get('LD_LIBRARY_PATH', '')}",
            "PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}",
            "PERSEUS_NCCL_LIBRARY": str(tmp_path / "no-nccl.so"),  # a torch for CUDA includes NCCL
            **environment,
        }
        line = [sys.executable, "-m", "perseus_like.launch", "-np", size, sys.executable, *command]
        return run_to_end(line, tmp_path, joined=True, **variables)

    return run


@pytest.fixture
def tests_pass(world: World) -> Callable[..., None]:
    """Returns `tests_pass(size, files, at_least=…, plugin=…, NAME="value")`.

    It runs the test files on all ranks and checks that they pass, and that each rank runs `at_least` tests or more.
    """

    def run(size: int, files: list[Path], at_least: int, plugin: str = "", **environment: str) -> None:
        options = ["-x", "-q", "-rs", "-p", "no:cacheprovider", "-p", "no:tmpdir", "--disable-warnings", "--no-header"]
        options += ["-p", plugin] if plugin else []
        done = world(
            size,
            *["-m", "pytest", *options, "--tb=short", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)],
            *map(str, files),
            PERSEUS_IN_WORLD="1",
            **environment,
        )
        assert done.returncode == 0, done.stdout[-12000:]
        passed = re.findall(r"(\d+) passed", done.stdout)
        assert len(passed) == size, done.stdout[-2000:]
        assert int(passed[0]) >= at_least, done.stdout[-2000:]

    return run
