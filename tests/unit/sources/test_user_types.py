"""Checks that programs of users type-check in strict mode, by mypy and by pyright, against the installed package."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

from tests.job import run_to_end

pytestmark = pytest.mark.slow  # mypy reads all of torch: a minute of one processor
PROGRAMS = sorted((Path(__file__).parent / "user_code").glob("*_program.py"))


def program_for(path: Path) -> Path:
    if importlib.util.find_spec(path.name.removesuffix("_program.py")) is None:
        pytest.skip(f"{path.name} needs a framework that is not installed")
    return path


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_mypy(path: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed; `make lint-types` installs it")
    command = [sys.executable, "-m", "mypy", "--strict", "--python-version=3.10", "--config-file=", program_for(path)]
    checked = run_to_end([*command, f"--cache-dir={tmp_path}"], joined=True)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_pyright(path: Path, tmp_path: Path) -> None:
    """Uses basedpyright, whose wheel contains all it needs. The package pyright downloads its program when it runs."""
    pyright = Path(sys.executable).with_name("basedpyright")
    if not pyright.exists():
        pytest.skip("basedpyright is not installed; `make lint-types` installs it")
    shutil.copy(program_for(path), tmp_path / path.name)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict", "pythonVersion": "3.10"}')
    checked = run_to_end([pyright, "--pythonpath", sys.executable, tmp_path / path.name], tmp_path, joined=True)
    assert checked.returncode == 0, checked.stdout
