"""Files that are there when they are whole, and not before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """The name to write to, beside `path` and with its endings; the file gets its own name when the block is done.

    Where writing fails, on a full disk say, nothing is left, and what was there under `path` before stays. A link stays
    one. What is no file, a device say, is written to as it is.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        yield path
        return
    beside = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        yield beside
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
