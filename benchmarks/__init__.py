"""Benchmarks: `python -m benchmarks.NAME` runs the file NAME.py; see README.md."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# `python -m` puts the source tree first, but the installed package, with its core, is what is to be measured.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]
