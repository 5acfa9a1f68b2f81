"""Says why a program could not be started. `rank_main` imports this file by its folder, without the package."""

from __future__ import annotations

import shutil
from pathlib import Path


def why_unstarted(program: str, error: OSError) -> tuple[str, int]:
    """Returns a text, and the exit code that a shell reports for it."""
    if not isinstance(error, FileNotFoundError):
        return f"cannot run {program!r}: {error.strerror}", 126
    found = shutil.which(program)
    if found is None:
        return f"{program!r}: no such program", 127
    # The file is there: the kernel misses what the file names to run it.
    interpreter = _interpreter(Path(found))
    needed = f"its interpreter {interpreter!r}, named in its first line," if interpreter else "its dynamic loader"
    return f"cannot run {program!r}: {needed} does not exist", 127


def _interpreter(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            first = file.readline(4096)
    except OSError:
        return None
    words = first[2:].split() if first.startswith(b"#!") else []
    return words[0].decode(errors="replace") if words else None
