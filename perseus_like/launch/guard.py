"""A small process beside the launcher that ends the job when the launcher itself is killed.

The kernel already kills the ranks then (PR_SET_PDEATHSIG), but not what the ranks have started, such as the
workers of a data loader. The guard holds the read end of a pipe; it ends when the launcher says goodbye, and
cleans up when the pipe closes without one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import NoReturn

from .processes import Process, has_in_environment, process_table, send, start_of, wait_for_an_end

_GOODBYE = b"."
_LONGEST_SECONDS = 5.0


class Guard:
    """Started before the first rank, dismissed after the last."""

    def __init__(self, job: str, grace: float, clean_up: Callable[[], None]) -> None:
        """`grace`: seconds that the job's processes have to end by themselves (an mpirun: to clean up elsewhere).

        `clean_up` is called after their ends.
        """
        self._watched: set[int] = set()
        read_end, self._write_end = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._write_end)
            _guard(read_end, f"PERSEUS_JOB={job}".encode(), grace, clean_up)
        os.close(read_end)

    def watch(self, leader: int) -> None:
        """Adds the session of a process that has just been started to those that the guard ends."""
        self._watched.add(leader)
        self._tell(f"{leader} {start_of(leader)}\n".encode())

    def forget(self, leader: int) -> None:
        """Removes a session that has ended: its number may come again, as a stranger's."""
        if leader in self._watched:
            self._watched.remove(leader)
            self._tell(f"{leader}\n".encode())

    def dismiss(self) -> None:
        """The launcher has cleaned up itself."""
        self._tell(_GOODBYE)
        os.close(self._write_end)

    def _tell(self, text: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # somebody has killed it
            os.write(self._write_end, text)


def _guard(pipe: int, entry: bytes, grace: float, clean_up: Callable[[], None]) -> NoReturn:
    try:
        os.setsid()
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
        _keep_only(pipe)
        said = b""
        while block := os.read(pipe, 65536):
            said += block
        if not said.endswith(_GOODBYE):
            _kill_all(_sessions(said), entry, grace)
            clean_up()
    finally:
        os._exit(0)


def _sessions(said: bytes) -> dict[int, int]:
    """Returns the start times of the leaders by the number of their sessions."""
    sessions: dict[int, int] = {}
    for line in said.splitlines():
        leader, *start = map(int, line.split())
        if start:
            sessions[leader] = start[0]
        else:
            sessions.pop(leader, None)
    return sessions


def _keep_only(pipe: int) -> None:
    # Whoever reads the launcher's output waits for all copies of its descriptors to close.
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    for descriptor in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
        if descriptor > 2 and descriptor != pipe:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(descriptor)


def _kill_all(sessions: dict[int, int], entry: bytes, grace: float) -> None:
    start = time.monotonic()
    while time.monotonic() < start + grace + _LONGEST_SECONDS:
        table = process_table()
        ours = sessions.keys() - _taken_by_strangers(sessions, table)
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
        # Then another look: processes may have been forking meanwhile.
        wait_for_an_end(members, start + grace - now if now < start + grace else _LONGEST_SECONDS)


def _taken_by_strangers(sessions: dict[int, int], table: list[Process]) -> set[int]:
    """Returns the sessions whose number belongs to another leader now. A number is free once no member is left."""
    return {process.pid for process in table if process.pid in sessions and process.start != sessions[process.pid]}
