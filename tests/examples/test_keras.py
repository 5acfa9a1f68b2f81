"""Runs the Keras examples as their first lines say."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.job import needs

needs("keras")
needs("tensorflow")

Example = Callable[..., CompletedProcess[str]]


def accuracy_of(done: CompletedProcess[str]) -> float:
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"test accuracy (\S+) %", done.stdout)
    assert len(found) == 1, done.stdout
    return float(found[0])


@pytest.mark.slow
def test_fit_learns_and_rank_0_saves(run_example: Example, tmp_path: Path) -> None:
    done = run_example("keras/digits.py", "--checkpoint", tmp_path / "digits.keras")
    assert accuracy_of(done) >= 93
    assert [each.name for each in tmp_path.iterdir()] == ["digits.keras"]
    keras: Any = pytest.importorskip("keras")
    saved = keras.models.load_model(tmp_path / "digits.keras")  # a plain model that does not need this library
    assert saved.output_shape == (None, 10)


@pytest.mark.slow
def test_batch_normalization_of_all_ranks(run_example: Example) -> None:
    done = run_example("keras/sync_batch_norm.py")
    assert accuracy_of(done) >= 85
    assert "the same on all ranks" in done.stdout
