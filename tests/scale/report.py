"""Writes the tables and the picture of docs/scale.md: `make scale`.

python tests/scale/report.py build/core/tests/scale/perseus_scale [RANKS ...]
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENT = ROOT / "docs/scale.md"
PICTURE = ROOT / "docs/scale.svg"
RANKS = (64, 256, 1024, 4096)
# Processes of one machine then exchange messages by TCP, as between hosts.
TCP = {"MPIR_CVAR_NOLOCAL": "1", "FI_PROVIDER": "tcp", "UCX_TLS": "tcp,self"}

_WIDTH, _HEIGHT, _LEFT, _TOP, _LEGEND = 380, 280, 60, 30, 260  # pixels
_HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">
<title>{title}</title>
<style>
text {{ font: 12px system-ui, sans-serif; fill: #1f2328 }}
.back {{ fill: #ffffff }} .grid {{ stroke: #d1d9e0; fill: none }} .line {{ fill: none; stroke-width: 2 }}
@media (prefers-color-scheme: dark) {{
text {{ fill: #e6edf3 }} .back {{ fill: #0d1117 }} .grid {{ stroke: #30363d }}
}}
</style>
<rect class="back" width="{width}" height="{height}" rx="6"/>
"""
_COLOURS = (
    *("#0a7d72", "#bf4b8a", "#3572b0", "#b35900", "#6e40c9"),
    *("#57606a", "#a40e26", "#7d8b00", "#1a7f37", "#d4a72c"),
)

Row = dict[str, Any]


def run(*command: str | Path, **variables: str) -> list[Row]:
    """Returns the lines of JSON that a command prints."""
    environment = {**os.environ, "PERSEUS_LOG_LEVEL": "error", **variables}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=1800)
    return [json.loads(line) for line in done.stdout.splitlines()]


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join("| " + " | ".join(str(cell) for cell in line) + " |\n" for line in lines)


def situations_table(rows: Sequence[Row]) -> str:
    names = list(dict.fromkeys(row["situation"] for row in rows))
    ordered = sorted(rows, key=lambda row: (names.index(row["situation"]), row["ranks"]))
    columns = ("situation", "ranks", "messages", "another rank's", "connections", "another rank's", "bytes", "µs")
    keys = ("ranks", "messages", "other_messages", "connections", "other_connections", "bytes")
    cells = (
        [row["situation"], *(row[key] if row[key] else "–" for key in keys), f"{row['microseconds']:.0f}"]
        for row in ordered
    )
    return table(columns, cells)


def axes(title: str, left: int, low: float, high: float, ranks: Sequence[int]) -> str:
    """Returns the frame of a log-log diagram, with a line for each power of ten and for each number of ranks."""
    body = f'<text x="{left}" y="{_TOP - 12}">{title}</text>\n'
    for power in range(round(math.log10(low)), round(math.log10(high)) + 1):
        y = place(10**power, low, high, _TOP + _HEIGHT, _TOP)
        body += f'<path class="grid" d="M{left} {y:.1f}H{left + _WIDTH}"/>\n'
        body += f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{10**power:,}</text>\n'
    for number in ranks:
        x = place(number, ranks[0], ranks[-1], left, left + _WIDTH)
        body += f'<path class="grid" d="M{x:.1f} {_TOP}V{_TOP + _HEIGHT}"/>\n'
        body += f'<text x="{x:.1f}" y="{_TOP + _HEIGHT + 18}" text-anchor="middle">{number:,}</text>\n'
    return body


def place(value: float, low: float, high: float, first: float, last: float) -> float:
    return first + (last - first) * math.log(value / low) / math.log(high / low)


def picture(rows: Sequence[Row]) -> str:
    """Returns two log-log diagrams over the number of ranks: rank 0's messages, and its processor time."""
    ranks = sorted({row["ranks"] for row in rows})
    names = list(dict.fromkeys(row["situation"] for row in rows))
    body = ""
    for number, (key, title) in enumerate((("messages", "messages of rank 0"), ("microseconds", "µs of rank 0"))):
        left = _LEFT + number * (_WIDTH + _LEFT + 20)
        values = [row[key] for row in rows if row[key] >= 1]
        low = 10 ** math.floor(math.log10(min(values)))
        high = 10 ** math.ceil(math.log10(max(values)))
        body += axes(f"{title}, by the number of ranks", left, low, high, ranks)
        for colour, name in zip(_COLOURS, names, strict=True):
            points = " ".join(
                f"{place(row['ranks'], ranks[0], ranks[-1], left, left + _WIDTH):.1f},"
                f"{place(row[key], low, high, _TOP + _HEIGHT, _TOP):.1f}"
                for row in rows
                if row["situation"] == name and row[key] >= 1
            )
            body += f'<polyline class="line" stroke="{colour}" points="{points}"/>\n'
    left = _LEFT + 2 * (_WIDTH + _LEFT + 20) - 40
    for number, (colour, name) in enumerate(zip(_COLOURS, names, strict=True)):
        y = _TOP + 20 * number
        body += f'<path class="line" stroke="{colour}" d="M{left} {y}h16"/>\n'
        body += f'<text x="{left + 22}" y="{y + 4}">{name}</text>\n'
    title = "Messages and processor time of rank 0 by the number of ranks"
    return _HEAD.format(width=left + _LEGEND, height=_TOP + _HEIGHT + 30, title=title) + body + "</svg>\n"


def replace(text: str, name: str, content: str) -> str:
    """Replaces what is between the marks of a part that this program writes."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    head, _, rest = text.partition(begin)
    return head + begin + content + end + rest.partition(end)[2]


def main(program: Path, ranks: Sequence[str]) -> int:
    rows = run(program, "situations", *ranks)
    mpirun = Path(sys.prefix, "bin/mpirun")
    link = run(mpirun, "-np", "2", program, "link", "mpich", sys.prefix, **TCP)[0]
    steps = run(program, "step", *(str(link[key]) for key in ("delay", "send", "receive")))
    text = replace(DOCUMENT.read_text(), "situations", situations_table(rows))
    times = f"Delay {link['delay']} µs, send {link['send']} µs, receive {link['receive']} µs:\n\n"
    predicted = table(("hosts", "predicted, µs"), ((row["hosts"], f"{row['microseconds']:.0f}") for row in steps))
    DOCUMENT.write_text(replace(text, "predictions", times + predicted))
    PICTURE.write_text(picture(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:] or [str(number) for number in RANKS]))
