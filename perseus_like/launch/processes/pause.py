"""Ctrl-Z: stops a job together with the launcher, until both are continued."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable

from .. import processes
from .child import Child

_LONGEST_STOP_SECONDS = 2.0
# A perseusrun inside the job stops its own ranks first, which may take as long as above.
_LONGEST_STOP_OF_PERSEUSRUN_SECONDS = 2 * _LONGEST_STOP_SECONDS


class Pause:
    """Stops and continues the job. `before` and `after` are called for processes that signals do not reach."""

    def __init__(self) -> None:
        self.before: list[Callable[[], None]] = []
        self.after: list[Callable[[], None]] = []

    def run(self, children: Iterable[Child]) -> float:
        """Stops the children and this process until SIGCONT; returns for how many seconds."""
        for action in self.before:
            action()
        stopping = [(child.pid, child.stop_signal) for child in children if child.stop_signal]
        for pid, signum in stopping:
            processes.send_to_group(pid, signum)
        began = time.monotonic()
        for pid, signum in stopping:
            # A SIGCONT that precedes the stop would be lost, and the child would never continue.
            is_perseusrun = signum == signal.SIGTSTP
            longest = _LONGEST_STOP_OF_PERSEUSRUN_SECONDS if is_perseusrun else _LONGEST_STOP_SECONDS
            processes.wait_until_stopped(pid, max(0.0, began + longest - time.monotonic()))
        began = time.monotonic()
        os.kill(os.getpid(), signal.SIGSTOP)
        stopped_for = time.monotonic() - began
        for pid, _ in stopping:
            processes.send_to_group(pid, signal.SIGCONT)
        for action in self.after:
            action()
        return stopped_for
