"""Runs short forms of examples with torch."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from ..examples import check_example


@pytest.mark.parametrize(
    "program",
    [
        "pytorch/partial_fc.py --epochs 1 --steps 5 --target 0",
        "pytorch/tensor_and_data_parallel.py --epochs 1 --target 0",
        "pytorch/distributed_backend.py --epochs 1 --target 0 --by ddp",
        "pytorch/distributed_backend.py --epochs 1 --target 0 --by fsdp",
        "elastic/pytorch_digits.py --epochs 1 --target 0",
    ],
)
def test_example(program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    if "fsdp" in program:
        pytest.importorskip("torch", minversion="2.6")
    check_example(program, monkeypatch, capsys)
