"""The user's signals as events: they arrive as bytes in a socket, so no code runs inside a signal handler."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterable

# The pipe through which a program that has called `run` passes on a Ctrl-C: its descriptor, device and inode.
INTERRUPTS = "PERSEUS_INTERRUPTS"


class SignalEvents:
    """Receives these signals until `close`. It has a descriptor that can be polled."""

    def __init__(self, signals: Iterable[signal.Signals]) -> None:
        self._socket, self._wake_end = socket.socketpair()
        self._socket.setblocking(False)
        self._wake_end.setblocking(False)
        self._old_wakeup = signal.set_wakeup_fd(self._wake_end.fileno(), warn_on_full_buffer=False)
        self._old_handlers = {}
        for signum in signals:
            # A signal that nohup ignores stays ignored. SIGCHLD is needed for the ends of children.
            if signal.getsignal(signum) is not signal.SIG_IGN or signum == signal.SIGCHLD:
                self._old_handlers[signum] = signal.signal(signum, _note_signal)

    def fileno(self) -> int:
        """The descriptor that can be read once a signal has arrived."""
        return self._socket.fileno()

    def take(self) -> list[signal.Signals]:
        """Returns the signals that have arrived. Call it only when the descriptor can be read."""
        return [signal.Signals(number) for number in self._socket.recv(4096)]

    def add(self, signals: Iterable[signal.Signals]) -> None:
        """Adds signals that have arrived before."""
        self._wake_end.send(bytes(signals))

    def close(self) -> None:
        """Restores the handlers that were there before."""
        for signum, handler in self._old_handlers.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(self._old_wakeup)
        self._socket.close()
        self._wake_end.close()


def _note_signal(signum: int, frame: object) -> None:
    """Does nothing: the signal has already been written to the wakeup descriptor."""


class CallersInterrupts:
    """The interrupts (Ctrl-C) of a program that has called `run`. It has a descriptor that can be polled, or −1.

    A terminal interrupts the launcher as well as the program, `kill` may interrupt the program alone. So the number of
    interrupts is the larger one of the program's and of the launcher's own.
    """

    def __init__(self) -> None:
        self._descriptor = _callers_pipe()
        self._by_signal = self._by_caller = 0

    def fileno(self) -> int:
        """The descriptor that can be read once the program was interrupted, or has ended."""
        return self._descriptor

    def take(self) -> bool:
        """Reads one interrupt. Returns False if the program has ended."""
        return bool(os.read(self._descriptor, 1))

    def is_new(self, by_signal: bool) -> bool:
        """Counts an interrupt of the launcher or of the program. Returns False if it was counted for the other one."""
        before = max(self._by_signal, self._by_caller)
        if by_signal:
            self._by_signal += 1
        else:
            self._by_caller += 1
        return max(self._by_signal, self._by_caller) > before


def _callers_pipe() -> int:
    with contextlib.suppress(OSError, ValueError):
        number, file = os.environ.pop(INTERRUPTS, "").split(" ")
        status = os.fstat(int(number))
        if file == f"{status.st_dev}:{status.st_ino}":
            return int(number)
    return -1
