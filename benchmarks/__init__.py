"""Benchmarks: `python -m benchmarks.NAME` runs the file NAME.py; see README.md."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# benchmarks.fifteen_minutes sets these variables for the programs that it starts.
COMMIT = "PERSEUS_BENCHMARK_COMMIT"  # the commit of the sources, if these are no git repository
RESULT = "PERSEUS_BENCHMARK_RESULT"  # the file for what a program has measured, as JSON
SMALL = "PERSEUS_BENCHMARK_SMALL"  # tiny sizes, to see if a program runs

# `python -m` puts the source tree first, but the installed package, with its core, is what is to be measured.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]


def write_whole(file: Path, text: str) -> None:
    """Replaces the file at once, so that an end at any time leaves the old one or the new one."""
    new = file.with_name(f"{file.name}.new")
    new.write_text(text)
    new.replace(file)
