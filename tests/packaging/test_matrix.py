"""The compatibility matrix: its cells by name, and the page that is made from its results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.job import run_to_end

ROOT = Path(__file__).parents[2]
MATRIX = ROOT / "tests" / "matrix"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(MATRIX))


def matrix(*arguments: str) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [sys.executable, MATRIX / "run.py", *arguments]
    return run_to_end(command)


def test_cells_are_chosen_by_name() -> None:
    all_names = matrix("--list").stdout.split()
    assert len(all_names) == len(set(all_names)) > 100
    assert matrix("--list", "--cell", "3.12-torch-2.13.0").stdout.split() == ["3.12-torch-2.13.0"]
    column = matrix("--list", "--python", "3.10").stdout.split()
    assert column == [name for name in all_names if name.startswith("3.10-")]
    wrong = matrix("--cell", "3.12-torch-1.0")
    assert wrong.returncode == 1
    assert "no cell is named 3.12-torch-1.0; --list shows all" in wrong.stderr


def test_the_files_of_tests_exist() -> None:
    import cells

    files = {file for cell in cells.cells() for file in cell.files}
    assert files
    assert [file for file in sorted(files) if not (ROOT / file).exists()] == []


def test_the_page_is_made_from_the_results() -> None:
    import table

    results = json.loads((MATRIX / "results.json").read_text())
    assert (ROOT / "docs" / "compatibility.md").read_text() == table.page(results), "run `make matrix`"


def test_the_page_shows_each_state_and_its_reason() -> None:
    import table

    with_numpy = {"date": "2026-01-01", "versions": {"numpy": "2.0"}, "wheel": "perseus_like-1.2-cp312-cp312-any.whl"}
    page = table.page(
        {
            "3.10-numpy-1": {"state": "passed", "text": "smoke test and 9 tests", **with_numpy},
            "3.12-numpy-1": {"state": "failed", "text": "a | b", **with_numpy},
            "3.13-numpy-1": {"state": "absent", "text": "no wheel", **with_numpy},
        }
    )
    assert "| 1 | ✓ |  | ✗ | – |  |" in page
    assert "| 3.12-numpy-1 | 2026-01-01 | 1.2 | numpy 2.0 | failed: a / b |" in page
