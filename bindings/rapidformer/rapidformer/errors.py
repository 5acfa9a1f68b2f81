"""The error of wrong input."""

from __future__ import annotations


class InputError(Exception):
    """Reports wrong input in one line: what is wrong, and what to do. Every rank raises the same one."""
