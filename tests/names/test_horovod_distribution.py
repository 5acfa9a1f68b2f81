"""Checks the distribution in bindings/horovod, which has the name horovod, for packages that require Horovod."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.job import LIMIT_SECONDS

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]

# This package cannot be installed without a distribution named horovod.
DEPENDENT = """
    [build-system]
    requires = ["setuptools>=77"]
    build-backend = "setuptools.build_meta"

    [project]
    name = "needs-horovod"
    version = "1.0"
    dependencies = ["horovod[pytorch]>=0.21,<1"]

    [tool.setuptools]
    py-modules = []
"""

PROGRAM = """
    import importlib.metadata
    import horovod, horovod.torch as hvd
    import torch

    assert importlib.metadata.version("horovod") == horovod.__version__ == "0.28.1"
    hvd.init()
    print(hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist())
"""


def run(*command: str | Path, **options: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the bin folder of a virtual environment with needs-horovod and its requirements.

    The environment also sees the packages of the environment that runs the tests.
    """
    place = tmp_path_factory.mktemp("horovod")
    shutil.copytree(ROOT / "bindings/horovod", place / "horovod")
    (place / "dependent").mkdir()
    (place / "dependent/pyproject.toml").write_text(textwrap.dedent(DEPENDENT))
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    for source in ("horovod", "dependent"):
        options = ("--no-deps", "--no-build-isolation", "--wheel-dir", place / "wheels")
        run(*pip, "wheel", *options, place / source)
    environment = place / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    (site_packages,) = environment.glob("lib/python*/site-packages")
    installed = Path(torch.__file__).parents[1]
    (site_packages / "installed.pth").write_text(f"{installed}\n")
    run(
        *pip,
        "--python",
        environment / "bin/python",
        "install",
        "--no-index",
        f"--find-links={place / 'wheels'}",
        "needs-horovod",
    )
    return environment / "bin"


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_horovodrun_starts_a_program_that_imports_horovod(folder: Path, tmp_path: Path, size: int) -> None:
    program = tmp_path / "train.py"
    program.write_text(textwrap.dedent(PROGRAM))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = (folder / "horovodrun", "-np", str(size), "--no-prefix", folder / "python", program)
    assert run(*command, env=environment, cwd=tmp_path) == f"{[float(size)] * 2}\n" * size


@pytest.mark.slow
def test_pip_shows_the_distribution_as_horovod(folder: Path, tmp_path: Path) -> None:
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", folder / "python")
    shown = run(*pip, "show", "horovod", cwd=tmp_path)
    assert "Version: 0.28.1" in shown
    assert "Requires: perseus-like" in shown
