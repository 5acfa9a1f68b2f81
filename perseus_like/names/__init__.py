"""Doors: names under which other projects know this API. A module behind a door is the same object as ours.

`perseus` (AIACC-Training's name) is installed. `horovod` is opened only where it is asked for, so that a Horovod that
is installed as well stays what it is: by `perseusrun --as-horovod`, by
`python -m perseus_like.names horovod -- script.py`, or by putting `folder_of("horovod")` on PYTHONPATH.
"""

from __future__ import annotations

from pathlib import Path

from .finder import open_door

# Doors that are opened by a folder on the module search path.
FOLDERS = ("horovod",)


def folder_of(name: str) -> str:
    """The folder for PYTHONPATH that makes `import <name>` find ours. ValueError where there is no such door."""
    if name not in FOLDERS:
        raise ValueError(f"there is no door named {name!r} to open; there is {', '.join(FOLDERS)}")
    return str(Path(__file__).parent.absolute() / name)


__all__ = ["FOLDERS", "folder_of", "open_door"]
