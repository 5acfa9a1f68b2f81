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
    """Returns the smallest CPU quota of this process's cgroups and those above them, in cores; None without a quota."""
    quotas = []
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # a sandbox without this file
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mounted = Path("/sys/fs/cgroup", controllers)  # cgroup v2 has no controllers in this line
        # In a container, the path may be that of the host, and only the mounted folder exists.
        own = mounted / path.lstrip("/")
        quotas += [_quota_of(folder) for folder in (own, *own.parents) if folder.is_relative_to(mounted)]
    return min((quota for quota in quotas if quota), default=None)


def _quota_of(cgroup: Path) -> float | None:
    try:
        quota, period = (cgroup / "cpu.max").read_text(encoding="ascii").split()
    except OSError:
        try:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")  # cgroup v1
            quota, period = ((cgroup / name).read_text(encoding="ascii").strip() for name in names)
        except OSError:
            return None
    return None if quota in ("max", "-1") else int(quota) / int(period)


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
