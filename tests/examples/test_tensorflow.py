"""Runs short forms of the TensorFlow examples."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

pytest.importorskip("tensorflow")

Example = Callable[..., CompletedProcess[str]]


def accuracy_of(done: CompletedProcess[str]) -> float:
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"test accuracy (\S+) %", done.stdout)
    assert len(found) == 1, done.stdout
    return float(found[0])


@pytest.mark.slow
def test_a_custom_training_loop_learns(run_example: Example) -> None:
    assert accuracy_of(run_example("tensorflow/digits_loop.py")) >= 93


@pytest.mark.slow
def test_a_monitored_session_learns_and_resumes(run_example: Example, tmp_path: Path) -> None:
    short = run_example("tensorflow/digits_session.py", "--steps", 100, "--target", 0, "--checkpoints", tmp_path)
    assert short.returncode == 0, short.stderr
    assert accuracy_of(run_example("tensorflow/digits_session.py", "--checkpoints", tmp_path)) >= 93
    assert (tmp_path / "checkpoint").exists()
