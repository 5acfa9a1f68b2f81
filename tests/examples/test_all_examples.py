"""Each example is run by a test of this folder; `run_example` checks that it shows progress and what it has reached."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"


@pytest.mark.parametrize("example", [str(file.relative_to(EXAMPLES)) for file in sorted(EXAMPLES.glob("*/*.py"))])
def test_a_test_runs_it(example: str) -> None:
    framework, name = example.split("/")
    assert re.search(rf'["/]{name}"', (HERE / f"test_{framework}.py").read_text())
