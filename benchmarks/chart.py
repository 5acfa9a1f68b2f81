"""Draws the times of README.md's first table: `python -m benchmarks.chart` writes benchmarks/speed.svg.

The picture has no number of its own. A reader's dark theme gets a dark picture.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from . import ROOT

PICTURE = ROOT / "benchmarks/speed.svg"
_UNITS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0}
_TIME = re.compile(r"(\d+(?:\.\d+)?) (µs|ms|s)\b")
_LEFT, _BARS, _BAR, _GAP = 300, 400, 14, 12  # pixels
_HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">
<title>{title}</title>
<style>
text {{ font: 12px system-ui, sans-serif; fill: #1f2328 }}
.back {{ fill: #ffffff }} .bar0 {{ fill: #0a7d72 }} .bar1 {{ fill: #8c959f }} .bar2 {{ fill: #c4ccd4 }}
@media (prefers-color-scheme: dark) {{
text {{ fill: #e6edf3 }}
.back {{ fill: #0d1117 }} .bar0 {{ fill: #2cb5a5 }} .bar1 {{ fill: #8b949e }} .bar2 {{ fill: #4b535d }}
}}
</style>
<rect class="back" width="{width}" height="{height}" rx="6"/>
"""


class Row(NamedTuple):
    work: str
    times: tuple[tuple[str, float] | None, ...]  # of each contender: as in the table, and in seconds


def rows_of(text: str) -> tuple[list[str], list[Row]]:
    """Returns the contenders, and the rows of the first table under "Numbers" that have times of several contenders."""
    lines = [line for line in text.partition("\n## Numbers\n")[2].splitlines() if line.startswith("|")]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    head = table[0]
    rows = []
    for cells in table[2:]:
        if len(cells) != len(head):  # the next table
            break
        found = [_TIME.search(cell) for cell in cells[1:]]
        times = tuple(None if each is None else (each[0], float(each[1]) * _UNITS[each[2]]) for each in found)
        if sum(each is not None for each in times) > 1:
            rows.append(Row(cells[0].partition(";")[0].replace("`", ""), times))
    return head[1:], rows


def drawn(contenders: Sequence[str], rows: Sequence[Row]) -> str:
    """Returns the picture. The longest bar of each row has the same length."""
    body, left, top = "", _LEFT, 40
    for place, name in enumerate(contenders):
        body += f'<rect class="bar{place}" x="{left}" y="14" width="12" height="12" rx="2"/>\n'
        body += f'<text x="{left + 18}" y="24">{escape(name)}</text>\n'
        left += 50 + 7 * len(name)
    for row in rows:
        present = [(place, *each) for place, each in enumerate(row.times) if each is not None]
        longest = max(seconds for _, _, seconds in present)
        middle = top + _BAR * len(present) / 2 + 4
        body += f'<text x="{_LEFT - 10}" y="{middle:.0f}" text-anchor="end">{escape(row.work)}</text>\n'
        for place, label, seconds in present:
            width = max(1.0, _BARS * seconds / longest)
            body += f'<rect class="bar{place}" x="{_LEFT}" y="{top}" width="{width:.1f}" height="{_BAR - 2}"/>\n'
            body += f'<text x="{_LEFT + width + 6:.1f}" y="{top + _BAR - 4}">{escape(label)}</text>\n'
            top += _BAR
        top += _GAP
    title = escape("Times of " + ", ".join(contenders) + "; shorter is better")
    return _HEAD.format(width=_LEFT + _BARS + 80, height=top, title=title) + body + "</svg>\n"


def main(readme: Path = ROOT / "README.md", picture: Path = PICTURE) -> int:
    picture.write_text(drawn(*rows_of(readme.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
