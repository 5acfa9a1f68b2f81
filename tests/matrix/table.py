"""Writes docs/compatibility.md from the results of `make matrix`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cells import PYTHONS, cells

SIGNS = {"passed": "✓", "failed": "✗", "refused": "refused", "absent": "–"}
TITLES = {
    "numpy": "NumPy",
    "torch": "PyTorch",
    "tensorflow": "TensorFlow",
    "keras": "Keras",
    "mxnet": "MXNet",
    "mpi": "MPI and oneCCL",
}
HEAD = """# What was run with what

`make matrix` writes this page. Each cell is an environment with a wheel of `make wheels`, in which the smoke test and
tests of the adapter ran on two ranks. A wheel is for all releases; the last table has the version that each cell ran.

| sign | meaning |
|---|---|
| ✓ | the smoke test and the tests passed |
| ✗ | a test failed; the reason is below |
| refused | the library refused with an error of its own; the text is below |
| – | it cannot be installed: there is no wheel for this Python, or no such Python on the machine |
| empty | not run yet |
"""


def write_table(results: dict[str, Any], path: Path) -> None:
    path.write_text(page(results))


def page(results: dict[str, Any]) -> str:
    """Returns the page: a table for each kind of software, and the reasons of what did not pass."""
    lines = [HEAD]
    for what, title in TITLES.items():
        releases = dict.fromkeys(cell.release for cell in cells() if cell.what == what)
        lines += [f"## {title}", "", f"| release | {' | '.join(f'Python {python}' for python in PYTHONS)} |"]
        lines.append("|---" * (len(PYTHONS) + 1) + "|")
        for release in releases:
            found = [results.get(f"{python}-{what}-{release}") for python in PYTHONS]
            signs = [SIGNS[each["state"]] if each else "" for each in found]
            lines.append(f"| {release} | {' | '.join(signs)} |")
        lines.append("")
    ran = {name: each for name, each in results.items() if each["state"] != "absent"}
    lines += ["## Details", "", "| cell | date | wheel | with | result |", "|---|---|---|---|---|"]
    for name, each in ran.items():
        versions = ", ".join(f"{package} {version}" for package, version in each["versions"].items())
        wheel = each["wheel"].split("-")[1]
        result = f"{each['state']}: {each['text'].replace('|', '/')}"
        lines.append(f"| {name} | {each['date']} | {wheel} | {versions} | {result} |")
    return "\n".join(lines) + "\n"
