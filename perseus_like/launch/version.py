"""Which version this is."""

from __future__ import annotations

import importlib.metadata


def version() -> str:
    """The version of the installed distribution."""
    try:
        return importlib.metadata.version("perseus-like")
    except importlib.metadata.PackageNotFoundError:
        return "unknown (not installed)"
