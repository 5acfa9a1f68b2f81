"""The processes of a job in the kernel's process table: their descendants, signals and ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..start_errors import describe_code

NO_INPUT = subprocess.DEVNULL
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_START = 19  # the field of the start time, counted from the state
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int, signum: int = signal.SIGKILL) -> None:
    """Makes the kernel send `signum` to this process when `parent` ends. A child calls it between fork and exec."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
    if os.getppid() != parent:  # the parent has ended before the call above
        os.kill(os.getpid(), signal.SIGKILL)


def raise_descriptor_limit() -> tuple[int, int]:
    """Raises the limit of open descriptors as far as this process may. Returns the soft and the hard limit before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, hard


def adopt_orphans() -> None:
    """Makes this process the parent of descendants whose own parent ends, so that it finds all of them."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@dataclass(frozen=True)
class Process:
    """A line of the process table."""

    pid: int
    parent: int
    session: int
    start: int  # clock ticks since boot; together with the pid, it identifies a process uniquely


def process_table() -> list[Process]:
    """Returns all processes that are alive. Zombies are not."""
    table = []
    for entry in os.listdir("/proc"):  # noqa: PTH208 (names are enough, and many)
        if entry.isdigit() and (fields := _stat(entry)) and fields[0] not in b"ZX":
            table.append(Process(int(entry), int(fields[1]), int(fields[3]), int(fields[_START])))
    return table


def start_of(pid: int) -> int:
    """Returns when a child started, as `Process.start`, also after it has ended; -1 once it is reaped."""
    fields = _stat(pid)
    return int(fields[_START]) if fields else -1


def _stat(pid: int | str) -> list[bytes] | None:
    """Returns the fields of /proc/PID/stat from the state on."""
    try:
        # The name in parentheses may itself contain blanks and parentheses.
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None


def descendants(ancestor: int) -> list[Process]:
    """Returns all live descendants of `ancestor`."""
    table = process_table()
    found: list[Process] = []
    parents = {ancestor}
    while parents:
        children = [process for process in table if process.parent in parents]
        found += children
        parents = {process.pid for process in children}
    return found


def has_in_environment(pid: int, entry: bytes) -> bool:
    """Returns True if `entry` ("NAME=value") is in the environment with which process `pid` was started."""
    try:
        return entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def send(pids: Iterable[int], signum: int) -> None:
    """Signals processes; those that have ended are skipped."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)


def wait_for_an_end(pids: Iterable[int], longest_seconds: float) -> None:
    """Returns once one of these processes has ended, or after `longest_seconds`."""
    descriptors: list[int] = []
    ends = select.poll()
    try:
        for pid in pids:
            try:
                descriptors.append(os.pidfd_open(pid))
            except ProcessLookupError:
                return
            ends.register(descriptors[-1], select.POLLIN)
        ends.poll(longest_seconds * 1000)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def wait_until_stopped(child: int, longest_seconds: float) -> None:
    """Returns once a child of this process has stopped or ended, or after `longest_seconds`."""
    end = time.monotonic() + longest_seconds
    events = os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG
    with contextlib.suppress(ChildProcessError):
        while os.waitid(os.P_PID, child, events) is None and time.monotonic() < end:
            time.sleep(0.005)


def send_to_group(group: int, signum: int) -> None:
    """Signals a process group, if it still exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signum)


def exit_code(status: int) -> int:
    """Returns the exit code of a wait status as a shell reports it: 128 + signal for a process that was killed."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def describe_exit(status: int) -> str:
    """Describes the end of a process in words."""
    return describe_code(os.waitstatus_to_exitcode(status))
