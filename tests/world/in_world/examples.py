"""Runs programs of examples/ on the ranks of a world, which have imported their framework already."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

import perseus_like.numpy as hvd

EXAMPLES = Path(__file__).parents[3] / "examples"


def check_example(program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs a short form of an example on all ranks. `program` is its path below examples/, and its arguments.

    tests/examples trains longer, and compares with one process.
    """
    path, *arguments = program.split()
    spec = importlib.util.spec_from_file_location("example", EXAMPLES / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr("sys.argv", [path, *arguments])
    assert module.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert bool(lines) == (hvd.rank() == 0)
    assert hvd.rank() > 0 or re.search(r"test accuracy \d|Total img/sec", lines[-1]), lines
