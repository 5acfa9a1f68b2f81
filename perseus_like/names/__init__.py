"""Import aliases: the names under which other projects know this API. An alias is the same module object as ours.

`perseus` (AIACC-Training's name) is always installed. `horovod` is not, so that an installed Horovod stays importable.
One of these makes `import horovod` find perseus_like:

- `perseusrun --as-horovod`
- `python -m perseus_like.names horovod -- script.py`
- `folder_of("horovod")` on PYTHONPATH
- the distribution in bindings/horovod
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from ..errors import use_horovods_words
from .aliases import install_alias

# Aliases that a folder on the module search path installs.
FOLDERS = ("horovod",)

# The release of Horovod whose names these are. Programs compare it. This package's version is perseus_like.__version__.
HOROVOD_VERSION = "0.28.1"


def folder_of(name: str) -> str:
    """Returns the folder for PYTHONPATH that makes `import <name>` find perseus_like. ValueError for other names."""
    if name not in FOLDERS:
        raise ValueError(f"there is no folder for an import alias {name!r}; use one of {', '.join(FOLDERS)}")
    return str(Path(__file__).parent.absolute() / name)


def install_horovod_alias() -> None:
    """Makes `horovod.…` importable. The package `horovod` here and the one in bindings/horovod call it."""
    install_alias("horovod")
    use_horovods_words()
    # In Horovod, these modules are attributes of the package as soon as any module of it is imported.
    for module in ("common", "runner"):
        import_module(f"horovod.{module}")


__all__ = ["FOLDERS", "HOROVOD_VERSION", "folder_of", "install_alias", "install_horovod_alias"]
