"""Finds the installed package if Python has found the source folder of a clone first.

A program in a clone's root imports the clone's folder `perseus_like`, which has neither the compiled core nor the
adapters, and which hides the installed package.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path


def complete_package(found: Iterable[str]) -> list[str]:
    """Returns the folders to import the package's modules from, given those that Python has found.

    Raises ImportError if Python has found a source folder, and no package is installed.
    """
    own = [Path(folder) for folder in found]
    if any(_has_core(folder) for folder in own):
        return [str(folder) for folder in own]
    candidates = [Path(entry).absolute() / "perseus_like" for entry in sys.path]
    installed = next((folder for folder in candidates if folder not in own and _has_core(folder)), None)
    if installed is None:
        raise ImportError(
            f"{own[0]} is the source folder of perseus_like: it has no compiled core, and no other perseus_like is "
            f"installed for {sys.executable}; run `pip install .` in {own[0].parent}"
        )
    return [str(installed)]


def _has_core(folder: Path) -> bool:
    return any((folder / f"_core{suffix}").is_file() for suffix in EXTENSION_SUFFIXES)
