"""Reads the variables by which torch finds its folder for extensions."""

from __future__ import annotations

import os
from pathlib import Path


def extensions() -> Path:
    """Returns torch's folder for extensions, or where torch would make it."""
    if folder := os.environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(folder)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))  # noqa: PTH111 - it never raises
    # A container may run as a user without a home folder. Nobody but root writes to the other one.
    return (cache if cache.is_absolute() else Path("/var/cache")) / "torch_extensions"
