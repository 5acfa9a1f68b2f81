"""The compiled core, which is loaded at first use, and the session of this process: its start, end and failure."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from types import TracebackType
from typing import Any

from . import errors, launchers
from .protocol.failure_record import has_agent, is_consequence
from .protocol.mpi_daemons import end_daemons_later
from .protocol.nearest import print_own_notes

# A process that has failed because it lost another one lets that one end first, for at most this time.
_LOSS_GRACE_SECONDS = 5.0


class Session:
    """The session of this process. `generation` grows with every start, so that stale caches can be recognised."""

    def __init__(self) -> None:
        self.generation = 0
        self._lock = threading.Lock()
        self._at_start: list[Callable[[], None]] = []
        self._at_stop: list[Callable[[], None]] = []
        self._before_stop: list[Callable[[], None]] = []
        self._failing = False
        self._holders: set[str] = set()
        self._hooked = False
        self._process = 0  # that has started the session

    @cached_property
    def core(self) -> Any:
        """The module perseus_like._core, with this package's error classes registered."""
        from . import _core

        errors.register(_core)
        return _core

    def on_start(self, reset: Callable[[], None]) -> None:
        """Registers `reset`, which runs after each start of a session. It resets counters that all ranks share."""
        self._at_start.append(reset)

    def on_stop(self, release: Callable[[], None]) -> None:
        """Registers `release`, which runs after each end of a session, when no collective is in flight any more."""
        self._at_stop.append(release)

    def before_stop(self, finish: Callable[[], None]) -> None:
        """Registers `finish`, which runs before a session is stopped, unless an exception ends the process."""
        self._before_stop.append(finish)

    def start(
        self,
        settings: dict[str, str],
        selection: Sequence[int] = (),
        rendezvous: tuple[int, int, Callable[[bytes], list[bytes]]] | None = None,
        cancel_fd: int = -1,
        lost: int = -1,
        holder: str = "init",
    ) -> bool:
        """Starts a session unless one is running. Returns True if it has started one.

        `selection`, `rendezvous`, `cancel_fd`, `lost`: see `_core.start`.
        `holder` names the user of the session. The session ends when all holders have called `release`, or at `stop`.
        """
        core = self.core
        with self._lock:
            if core.is_running():
                self._holders.add(holder)
                return False
            launcher = None if rendezvous else launchers.own()
            with _ended_by_ctrl_c():
                core.start(settings, sys.prefix, launcher, list(selection), rendezvous, cancel_fd, lost)
            self._holders = {holder}
            self._process = os.getpid()
            self.generation += 1
            for reset in self._at_start:
                reset()
            self._watch_exit()
        if self.generation == 1 and core.rank() == 0:
            print_own_notes(core)
        return True

    def release(self, holder: str) -> None:
        """Stops the session if there is no other holder."""
        with self._lock:
            self._holders.discard(holder)
            if self._holders:
                return
        self.stop()

    def stop(self) -> None:
        # A forked child has none of the session's threads, so its collectives are never complete.
        if not self._loaded() or self._process != os.getpid():
            return
        if self.core.is_running() and not self._failing:
            for finish in self._before_stop:
                finish()
        self.core.stop()
        for release in self._at_stop:
            release()

    def is_running(self) -> bool:
        return self._loaded() and bool(self.core.is_running())

    def _loaded(self) -> bool:
        return "core" in vars(self)

    def _watch_exit(self) -> None:
        if self._hooked:
            return
        self._hooked = True
        atexit.register(self._at_exit)
        previous = sys.excepthook

        def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            if not _is_interactive():
                self._mark_failing()
            previous(kind, error, trace)

        sys.excepthook = excepthook

    def _at_exit(self) -> None:
        # The interpreter sets this for an uncaught exception, even if another library has replaced our excepthook.
        if not _is_interactive() and getattr(sys, "last_value", None) is not None:
            self._mark_failing()
        self.stop()
        if self.core.was_cut_off():
            # mpirun waits for the lost host, and the daemons on this host wait for mpirun.
            end_daemons_later()
        self.core.finalize_at_exit()
        if has_agent() and _has_only_lost_another(getattr(sys, "last_value", None)):
            time.sleep(_LOSS_GRACE_SECONDS)  # the agent ends this process by a SIGTERM

    def _mark_failing(self) -> None:
        self._failing = True
        if self.is_running():
            self.core.mark_failing()


@contextlib.contextmanager
def _ended_by_ctrl_c() -> Iterator[None]:
    """Lets Ctrl-C end a process that waits for other ranks. Python would raise KeyboardInterrupt afterwards only."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler or _is_interactive():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _has_only_lost_another(error: BaseException | None) -> bool:
    # Errors that come through C++, as those of a backward pass do, have another class.
    name = errors.PeerLostError.__name__
    return error is not None and (is_consequence(error, errors.PeerLostError) or name in str(error))


def _is_interactive() -> bool:
    return bool(sys.flags.interactive) or hasattr(sys, "ps1")


session = Session()
