"""The guard: a small process beside the launcher that ends the job if the launcher is killed.

In this case the kernel kills the ranks (PR_SET_PDEATHSIG), but not the processes that the ranks have started, such as
the workers of a data loader. The guard holds the read end of a pipe. It ends when it receives the launcher's shutdown
message, and cleans up if the pipe closes without this message.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import NoReturn

from ..start_errors import LaunchError, explain_start_failure
from . import has_in_environment, process_table, send, start_of, wait_for_an_end

_SHUTDOWN = b"."
_LONGEST_SECONDS = 5.0


class Guard:
    """Started before the first rank, dismissed after the last."""

    def __init__(self, job: str, grace: float, clean_up: Callable[[], None]) -> None:
        """Forks the guard. The job's processes have `grace` seconds to end by themselves; an mpirun needs the time to
        clean up other hosts. `clean_up` is called after their ends.
        """
        self._watched: set[int] = set()
        read_end, self._write_end = os.pipe()
        try:
            self.pid = os.fork()
        except OSError as problem:
            raise LaunchError(*explain_start_failure("perseusrun", problem)) from None
        if self.pid == 0:
            os.close(self._write_end)
            _guard(read_end, f"PERSEUS_JOB={job}".encode(), grace, clean_up)
        os.close(read_end)

    def watch(self, leader: int) -> None:
        """Adds the session of a process that has just been started to those that the guard ends."""
        self._watched.add(leader)
        self._send(f"{leader} {start_of(leader)}\n".encode())

    def forget(self, leader: int) -> None:
        """Removes a session that has ended, since its id may be reused by a process of another job."""
        if leader in self._watched:
            self._watched.remove(leader)
            self._send(f"{leader}\n".encode())

    def dismiss(self) -> None:
        """Ends the guard, since the launcher has cleaned up itself."""
        self._send(_SHUTDOWN)
        os.close(self._write_end)

    def _send(self, text: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # the guard was killed
            os.write(self._write_end, text)


def _guard(pipe: int, entry: bytes, grace: float, clean_up: Callable[[], None]) -> NoReturn:
    try:
        os.setsid()
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
        _keep_only(pipe)
        received = b""
        while block := os.read(pipe, 65536):
            received += block
        if not received.endswith(_SHUTDOWN):
            _kill_all(_sessions(received), entry, grace)
            clean_up()
    finally:
        os._exit(0)


def _sessions(received: bytes) -> dict[int, int]:
    """Returns the start times of the leaders by the number of their sessions."""
    sessions: dict[int, int] = {}
    for line in received.splitlines():
        leader, *start = map(int, line.split())
        if start:
            sessions[leader] = start[0]
        else:
            sessions.pop(leader, None)
    return sessions


def _keep_only(pipe: int) -> None:
    # A reader of the launcher's output waits until all copies of its descriptors are closed.
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    for descriptor in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
        if descriptor > 2 and descriptor != pipe:
            with contextlib.suppress(OSError):  # the descriptor of the listing is closed already
                os.close(descriptor)


def _kill_all(sessions: dict[int, int], entry: bytes, grace: float) -> None:
    start = time.monotonic()
    while time.monotonic() < start + grace + _LONGEST_SECONDS:
        table = process_table()
        # The system reuses a session's id once no member is left. Another leader has another start.
        reused = {each.pid for each in table if each.pid in sessions and each.start != sessions[each.pid]}
        ours = sessions.keys() - reused
        members = [
            process.pid
            for process in table
            if process.pid != os.getpid() and (process.session in ours or has_in_environment(process.pid, entry))
        ]
        if not members:
            return
        now = time.monotonic()
        if now >= start + grace:
            send(members, signal.SIGKILL)
        # The next iteration finds processes that were forked meanwhile.
        wait_for_an_end(members, start + grace - now if now < start + grace else _LONGEST_SECONDS)
