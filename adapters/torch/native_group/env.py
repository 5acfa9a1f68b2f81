"""Reads the variables by which torch finds its folder for extensions."""

from __future__ import annotations

import os
from pathlib import Path


def extensions() -> Path:
    """Returns torch's folder for extensions, or where torch would make it."""
    if folder := os.environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "torch_extensions"
