"""Doors: names under which other projects know this API. A module behind a door is the same object as ours.

`perseus` (AIACC-Training's name) is installed. `horovod` is opened only where it is asked for, so that a Horovod that
is installed as well stays what it is: by `perseusrun --as-horovod`, by
`python -m perseus_like.names horovod -- script.py`, by putting `folder_of("horovod")` on PYTHONPATH, or by installing
the distribution in bindings/horovod.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from ..errors import use_horovods_words
from .finder import open_door

# Doors that are opened by a folder on the module search path.
FOLDERS = ("horovod",)

# The release of Horovod whose names these are. Programs compare it; this package's own is perseus_like.__version__.
HOROVOD_VERSION = "0.28.1"


def folder_of(name: str) -> str:
    """The folder for PYTHONPATH that makes `import <name>` find ours. ValueError where there is no such door."""
    if name not in FOLDERS:
        raise ValueError(f"there is no door named {name!r} to open; there is {', '.join(FOLDERS)}")
    return str(Path(__file__).parent.absolute() / name)


def open_horovod() -> None:
    """Makes `horovod.…` importable. Called by the package `horovod`, also by that of bindings/horovod."""
    open_door("horovod")
    use_horovods_words()
    # In Horovod, these are attributes as soon as anything of it is imported.
    for module in ("common", "runner"):
        import_module(f"horovod.{module}")


__all__ = ["FOLDERS", "HOROVOD_VERSION", "folder_of", "open_door", "open_horovod"]
