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

from .processes import has_in_environment, process_table, send, wait_for_an_end

_GOODBYE = b"."
_LONGEST_SECONDS = 5.0


class Guard:
    """Started before the first rank, dismissed after the last."""

    def __init__(self, job: str, grace: float, clean_up: Callable[[], None]) -> None:
        """`grace`: seconds that the job's processes have to end by themselves (an mpirun: to clean up elsewhere).

        `clean_up` is called after their ends.
        """
        read_end, self._write_end = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._write_end)
            _guard(read_end, f"PERSEUS_JOB={job}".encode(), grace, clean_up)
        os.close(read_end)

    def watch(self, session: int) -> None:
        """Adds a rank's session to those to be ended."""
        self._tell(f"{session}\n".encode())

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
            _kill_all({int(line) for line in said.split()}, entry, grace)
            clean_up()
    finally:
        os._exit(0)


def _keep_only(pipe: int) -> None:
    # Whoever reads the launcher's output waits for all copies of its descriptors to close.
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    for descriptor in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
        if descriptor > 2 and descriptor != pipe:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(descriptor)


def _kill_all(sessions: set[int], entry: bytes, grace: float) -> None:
    start = time.monotonic()
    while time.monotonic() < start + grace + _LONGEST_SECONDS:
        members = [
            process.pid
            for process in process_table()
            if process.pid != os.getpid() and (process.session in sessions or has_in_environment(process.pid, entry))
        ]
        if not members:
            return
        now = time.monotonic()
        if now >= start + grace:
            send(members, signal.SIGKILL)
        # Then another look: processes may have been forking meanwhile.
        wait_for_an_end(members, start + grace - now if now < start + grace else _LONGEST_SECONDS)
