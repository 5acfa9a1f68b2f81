"""Runs short forms of examples with Keras."""

from __future__ import annotations

import pytest

pytest.importorskip("keras", minversion="3")

from ..examples import check_example


def test_example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    check_example("elastic/keras_digits.py --epochs 1 --target 0", monkeypatch, capsys)
