"""Ctrl-Z: stops a job together with the launcher, until both are continued."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable

from . import processes
from .child import Child

# A perseusrun inside the job stops its own ranks first.
_LONGEST_STOP_SECONDS = 2.0


class Pause:
    """`before` and `after` are called each time the job stops and continues: for what signals do not reach."""

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
        for pid, _ in stopping:
            # A SIGCONT that comes before the stop would be lost, and the child never continue.
            processes.wait_until_stopped(pid, _LONGEST_STOP_SECONDS)
        began = time.monotonic()
        os.kill(os.getpid(), signal.SIGSTOP)
        stopped_for = time.monotonic() - began
        for pid, _ in stopping:
            processes.send_to_group(pid, signal.SIGCONT)
        for action in self.after:
            action()
        return stopped_for
