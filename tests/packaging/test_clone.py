"""Runs programs in the root of a clone, where the folder `perseus_like` must not hide the installed package."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import perseus_like, perseus_like.numpy as hvd
hvd.init()
print(perseus_like.__path__[0], hvd.size())
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Makes a folder like the root of a clone, with a program in it, and returns its path."""
    for folder in ("perseus_like", "adapters"):
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path


def test_a_program_in_a_clone_uses_the_installed_package(clone: Path) -> None:
    ended = subprocess.run([sys.executable, "train.py"], cwd=clone, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    folder, size = ended.stdout.split()
    assert Path(folder).is_relative_to(sys.prefix)
    assert size == "1"


def test_a_launcher_in_a_clone_starts_a_program_of_the_clone(clone: Path) -> None:
    launcher = [sys.executable, "-m", "perseus_like", "-np", "2", "train.py"]
    ended = subprocess.run(launcher, cwd=clone, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert sorted(line.split()[-1] for line in ended.stdout.splitlines()) == ["2", "2"]


def test_a_clone_without_an_installed_package_raises_an_error(clone: Path) -> None:
    ended = subprocess.run([sys.executable, "-S", "train.py"], cwd=clone, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith(
        f"ImportError: {clone}/perseus_like is the source folder of perseus_like: it has no compiled"
    )
    assert f"run `pip install .` in {clone}" in last
