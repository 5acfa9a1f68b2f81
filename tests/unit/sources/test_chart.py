"""Checks that the chart in README.md shows the numbers of the table below it."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"


@pytest.fixture(autouse=True)
def benchmarks_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)


def test_the_chart_is_that_of_the_table(tmp_path: Path) -> None:
    from benchmarks.report import PICTURE, draw_chart

    picture = tmp_path / "speed.svg"
    draw_chart(README, picture)
    text = picture.read_text()
    assert text == PICTURE.read_text(), "README.md's table has changed: run `python -m benchmarks.report --chart`"
    ElementTree.fromstring(text)
    assert "prefers-color-scheme: dark" in text


def test_rows_have_the_times_as_in_the_table() -> None:
    from benchmarks.report import chart_rows

    text = """
## Numbers

| | ours | other |
|---|---|---|
| one `float`; alone 3 ms | 5.2 µs | 1.6 µs |
| a step | 81 ms; our DDP 77 ms | 173 ms (DDP) |
| without a rival | 24 ms | |
| processor time | 0.002 % of a core | 0.26 % |

| of another table | 3 ms |
"""
    contenders, rows = chart_rows(text)
    assert contenders == ["ours", "other"]
    assert [work for work, _ in rows] == ["one float", "a step"]
    assert [[each and each[0] for each in times] for _, times in rows] == [["5.2 µs", "1.6 µs"], ["81 ms", "173 ms"]]
