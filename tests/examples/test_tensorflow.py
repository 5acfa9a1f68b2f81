"""Runs short forms of the TensorFlow and Keras examples."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.job import needs, succeeded

needs("tensorflow")

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
    succeeded(run_example("tensorflow/digits_session.py", "--steps", 100, "--target", 0, "--checkpoints", tmp_path))
    assert accuracy_of(run_example("tensorflow/digits_session.py", "--checkpoints", tmp_path)) >= 93
    assert (tmp_path / "checkpoint").exists()


@pytest.mark.slow
def test_synthetic_benchmark_counts_images_of_all_ranks(run_example: Example) -> None:
    short = ["--channels", 4, "--batch-size", 2, "--image-size", 32, "--batches-per-iteration", 1, "--iterations", 2]
    done = succeeded(run_example("tensorflow/synthetic_benchmark.py", *short, "--compression", "bf16"))
    assert done.stdout.count("Iter #") == 2
    each = re.search(r"Img/sec per CPU: ([\d.]+)", done.stdout)
    total = re.search(r"Total img/sec on 2 CPU\(s\): ([\d.]+)", done.stdout)
    assert each is not None
    assert total is not None
    assert float(total[1]) > float(each[1]) > 0


@pytest.mark.slow
def test_fit_learns_and_rank_0_saves(run_example: Example, tmp_path: Path) -> None:
    needs("keras")
    done = run_example("keras/digits.py", "--checkpoint", tmp_path / "digits.keras")
    assert accuracy_of(done) >= 93
    assert [each.name for each in tmp_path.iterdir()] == ["digits.keras"]
    import keras

    saved = keras.models.load_model(tmp_path / "digits.keras")  # a plain model that does not need this library
    assert saved.output_shape == (None, 10)


@pytest.mark.slow
def test_batch_normalization_of_all_ranks(run_example: Example) -> None:
    needs("keras")
    done = run_example("keras/sync_batch_norm.py")
    assert accuracy_of(done) >= 85
    assert "the same on all ranks" in done.stdout
