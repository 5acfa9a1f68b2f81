"""The process group in C++. `native` is its module if build_group has compiled it for this torch, otherwise None."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import logging
import os
import platform
import sys
from pathlib import Path
from typing import Any

import torch

from .env import extensions

NAME = "perseus_group"
_HERE = Path(__file__).parent
SOURCE = _HERE / "process_group.cc"
# The headers lie beside it in the package.
INCLUDES = _HERE
_SOURCES = (SOURCE, _HERE / "capi" / "perseus.h", _HERE / "base" / "tables.h")
_log = logging.getLogger("perseus_like")


def folder() -> Path:
    """Returns the folder with the modules for all releases of torch."""
    return extensions() / NAME


def path() -> Path:
    """Returns the file of the module for this torch, this Python, and the sources of this package."""
    digest = hashlib.sha256()
    for source in _SOURCES:
        digest.update(source.read_bytes())
    key = f"torch-{torch.__version__}-{sys.implementation.cache_tag}-{platform.machine()}-{digest.hexdigest()[:12]}"
    return folder() / key / f"{NAME}.so"


def load() -> Any:
    """Returns the module if it was compiled, otherwise None. Warns if it cannot be loaded."""
    if not folder().is_dir():
        return None
    file = path()
    if not file.exists():
        return None
    try:
        return load_file(file)
    except (ImportError, OSError) as error:
        _log.warning(
            "the process group in C++ is not used, because %s cannot be loaded: %s; compile it again: python -m "
            "perseus_like.torch.build_group",
            file,
            error,
        )
        return None


def load_file(file: Path) -> Any:
    """Returns the module in a file. PermissionError if another user could have written it."""
    if file.stat().st_uid not in (0, os.getuid()):
        raise PermissionError("the file belongs to another user")
    spec = importlib.util.spec_from_file_location(NAME, file)
    if spec is None or spec.loader is None:
        raise ImportError("it is no extension module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def warn_of_other_releases() -> None:
    """Logs a line if the module was compiled for another torch, Python or release of this package, but not for this."""
    if not folder().is_dir() or path().exists():
        return
    others = sorted(found.parent.name for found in folder().glob(f"*/{NAME}.so"))
    if others:
        _log.warning(
            "the process group in C++ is not used: it was compiled for %s, and this process needs %s. Compile it: "
            "python -m perseus_like.torch.build_group",
            ", ".join(others),
            path().parent.name,
        )


native = load()
