"""The core, loaded at first use, and the life of its session in this process: start, end, failure, fork."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import Any

from . import errors


# Numbers that a forked child may still ask for: DataLoader workers call rank().
_READABLE_AFTER_FORK = (
    "rank",
    "size",
    "local_rank",
    "local_size",
    "cross_rank",
    "cross_size",
    "is_homogeneous",
    "is_running",
    "description",
    "process_set_ids",
)


class ForkedCore:
    """Stands in for the core in a child forked from a running session: numbers are known, everything else raises."""

    def __init__(self, core: ModuleType) -> None:
        self._core = core
        self._parent = os.getppid()
        self._known = {name: getattr(core, name)() for name in _READABLE_AFTER_FORK}
        self._sets: dict[int, list[int]] = {
            number: core.process_set_ranks(number) for number in self._known["process_set_ids"]
        }

    def process_set_ranks(self, process_set: int) -> list[int]:
        return self._sets[process_set]

    def stop(self) -> None:
        """The session is the parent's to end."""

    def finalize(self, failing: bool) -> None:
        """MPI is the parent's to leave."""

    def mark_failing(self) -> None:
        """A child's failure is not the rank's."""

    def __getattr__(self, name: str) -> Any:
        if name in self._known:
            return lambda: self._known[name]
        attribute = getattr(self._core, name)
        if isinstance(attribute, type) or not callable(attribute):
            return attribute
        return functools.partial(self._refuse, name)

    def _refuse(self, name: str, *_: object, **__: object) -> None:
        raise errors.HorovodInternalError(
            f"{name} in process {os.getpid()}, which was forked from rank {self._known['rank']} (process "
            f"{self._parent}) after init(): only that process may communicate. Start the child with the "
            f"'spawn' or 'forkserver' method if it needs a session of its own."
        )


class Session:
    """One per process. `generation` grows with every start, so that what was laid out for an earlier one is known."""

    def __init__(self) -> None:
        self.generation = 0
        self._core: Any = None
        self._lock = threading.Lock()
        self._at_start: list[Callable[[], None]] = []
        self._hooked = False
        self._failing = False

    @property
    def core(self) -> Any:
        """perseus_like._core, with our error classes."""
        if self._core is None:
            self._load()
        return self._core

    def on_start(self, forget: Callable[[], None]) -> None:
        """`forget` runs whenever a new session has started: counters that all ranks share begin anew."""
        self._at_start.append(forget)

    def start(self, settings: dict[str, str]) -> bool:
        """True if a session was started, False if one was running."""
        core = self.core
        with self._lock:
            if core.is_running():
                return False
            core.start(settings, sys.prefix)
            self.generation += 1
            for forget in self._at_start:
                forget()
            self._watch_exit()
        return True

    def stop(self) -> None:
        if self._core is not None:
            self._core.stop()

    def is_running(self) -> bool:
        return self._core is not None and bool(self._core.is_running())

    def _load(self) -> None:
        with self._lock:
            if self._core is not None:
                return
            from . import _core

            errors.register(_core)
            os.register_at_fork(before=self._before_fork, after_in_child=self._after_fork_in_child)
            self._core = _core

    # What the child needs is read before the fork, while the core's locks are in order.
    def _before_fork(self) -> None:
        self._for_child = ForkedCore(self._core) if isinstance(self._core, ModuleType) and self.is_running() else None

    def _after_fork_in_child(self) -> None:
        self._lock = threading.Lock()
        if self._for_child is not None:
            self._core = self._for_child

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
        self._core.finalize(self._failing)

    def _mark_failing(self) -> None:
        self._failing = True
        if self.is_running():
            self._core.mark_failing()


def _is_interactive() -> bool:
    return bool(sys.flags.interactive) or hasattr(sys, "ps1")


session = Session()
