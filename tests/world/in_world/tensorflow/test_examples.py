"""Runs short forms of examples with TensorFlow."""

from __future__ import annotations

import pytest

from ..examples import check_example

SMALL = "--channels 4 --batch-size 2 --image-size 32 --batches-per-iteration 1 --iterations 2"


@pytest.mark.parametrize(
    "program",
    [f"tensorflow/synthetic_benchmark.py {SMALL}", "elastic/tensorflow_digits.py --epochs 1 --target 0"],
)
def test_example(program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    check_example(program, monkeypatch, capsys)
