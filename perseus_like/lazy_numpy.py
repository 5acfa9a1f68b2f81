"""Imports NumPy on first use. Launchers use none, and importing it takes 90 ms of processor time."""

from __future__ import annotations

from typing import Any


class _LazyNumPy:
    """Has NumPy's functions and types as attributes. Each is looked up in NumPy once."""

    def __getattr__(self, name: str) -> Any:
        import numpy

        found = getattr(numpy, name)
        setattr(self, name, found)
        return found


numpy = _LazyNumPy()
