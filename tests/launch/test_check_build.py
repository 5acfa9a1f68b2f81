"""Checks that `--check-build` finds the installed frameworks without importing them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.job import succeeded

from .conftest import Perseusrun


def fake_distribution(folder: Path, name: str, version: str) -> None:
    package = folder / name
    package.mkdir()
    (package / "__init__.py").write_text(f"raise SystemExit('{name} was imported')\n")
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_frameworks_are_found_and_not_imported(perseusrun: Perseusrun, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    fake_distribution(site, "mxnet", "9.8.7")
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    result = succeeded(perseusrun("--check-build", env={**os.environ, "PYTHONPATH": path}))
    (line,) = (line for line in result.stdout.splitlines() if "MXNet" in line)
    assert "[X]" in line
    assert "9.8.7" in line
    assert str(site / "mxnet") in line


def test_check_build_prints_all_rows(perseusrun: Perseusrun) -> None:
    result = succeeded(perseusrun("-cb"))
    for what in (
        "PyTorch",
        "TensorFlow",
        "Keras",
        "MXNet",
        "mpirun",
        "MPI library",
        "mpi4py",
        "oneCCL",
        "NCCL",
        "compiled core",
    ):
        assert sum(line.strip()[4:].startswith(what) for line in result.stdout.splitlines()) == 1, what
    assert sys.prefix in result.stdout
