"""This machine and this installation: usable cores, the installed version, and files that are replaced as a whole."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def usable_cores() -> int:
    """Returns the number of cores that the affinity mask and the container's CPU quota allow, at least 1."""
    cores = len(os.sched_getaffinity(0))
    quota = _cgroup_quota()
    return max(1, min(cores, math.ceil(quota)) if quota else cores)


def _cgroup_quota() -> float | None:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return int(quota) / int(period)
    except (OSError, ValueError):  # no cgroup v2 here, or "max": no quota
        return None


def temporary_folder(prefix: str) -> str:
    """Creates a folder that only this user may enter, also in a container whose root is read-only. Returns its path."""
    try:
        return tempfile.mkdtemp(prefix=prefix)
    except FileNotFoundError:  # no temporary folder is writable
        return tempfile.mkdtemp(prefix=prefix, dir="/dev/shm")


def installed_version() -> str:
    """Returns the version of the installed distribution."""
    from importlib import metadata  # imports the parser of e-mails

    try:
        return metadata.version("perseus-like")
    except metadata.PackageNotFoundError:
        return "unknown (not installed)"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`, with the same suffixes, and renames that file to `path` at the end.

    If writing fails, for example on a full disk, the temporary file is removed and the file at `path` stays as it was.
    A symbolic link at `path` stays a link. A device or a pipe at `path` is yielded itself.
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
