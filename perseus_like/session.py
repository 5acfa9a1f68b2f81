"""The core, loaded at first use, and the life of its session in this process: start, end, failure."""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from types import TracebackType
from typing import Any

from . import errors


class Session:
    """One per process. `generation` grows with every start, so that what was laid out for an earlier one is known."""

    def __init__(self) -> None:
        self.generation = 0
        self._lock = threading.Lock()
        self._at_start: list[Callable[[], None]] = []
        self._holders: set[str] = set()
        self._hooked = False
        self._failing = False

    @cached_property
    def core(self) -> Any:
        """perseus_like._core, with our error classes."""
        from . import _core

        errors.register(_core)
        return _core

    def on_start(self, forget: Callable[[], None]) -> None:
        """`forget` runs whenever a new session has started: counters that all ranks share begin anew."""
        self._at_start.append(forget)

    def start(
        self,
        settings: dict[str, str],
        selection: Sequence[int] = (),
        meeting: tuple[int, int, Callable[[bytes], list[bytes]]] | None = None,
        called_off: int = -1,
        holder: str = "init",
    ) -> bool:
        """True if a session was started, False if one was running.

        `selection`, `meeting`, `called_off`: see `_core.start`.
        `holder`: who needs the session until it calls `release`, or somebody stops it for all.
        """
        core = self.core
        with self._lock:
            if core.is_running():
                self._holders.add(holder)
                return False
            core.start(settings, sys.prefix, list(selection), meeting, called_off)
            self._holders = {holder}
            self.generation += 1
            for forget in self._at_start:
                forget()
            self._watch_exit()
        return True

    def release(self, holder: str) -> None:
        """Stops the session if nobody else holds it."""
        with self._lock:
            self._holders.discard(holder)
            if self._holders:
                return
        self.stop()

    def stop(self) -> None:
        if self._loaded():
            self.core.stop()

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
        # Set by the interpreter for an uncaught exception, even if somebody replaced our excepthook.
        if not _is_interactive() and getattr(sys, "last_value", None) is not None:
            self._mark_failing()
        self.stop()
        if self.core.was_cut_off():
            from .launch.mpi.rank_main import end_daemons_later

            # An mpirun waits for the lost host, and its daemons there for mpirun.
            end_daemons_later()
        self.core.finalize(self._failing)

    def _mark_failing(self) -> None:
        self._failing = True
        if self.is_running():
            self.core.mark_failing()


def _is_interactive() -> bool:
    return bool(sys.flags.interactive) or hasattr(sys, "ps1")


session = Session()
