"""What requests are called: the same on every rank, and of nothing else in flight."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from .session import session


class Names:
    """Automatic names, `allreduce.noname.N`: counted for each verb and process set, and only for calls that succeed.

    So a call that fails on one rank does not set that rank's count apart from the others'.
    """

    def __init__(self) -> None:
        self.epoch = 0  # grows with each reset
        self._counts: dict[tuple[str, int], int] = {}
        self._lock = threading.Lock()

    def submit(
        self, verb: str, name: str | None, set_id: int, call: Callable[..., Any], *arguments: Any
    ) -> tuple[str, Any]:
        """Calls with the full name and the arguments; gives the name and what `call` returned."""
        if name is not None:
            full = f"{verb}.{name}"
            return full, call(full, *arguments)
        with self._lock:
            count = self._counts.get((verb, set_id), 0)
            full = f"{verb}.noname.{count}"
            result = call(full, *arguments)
            self._counts[verb, set_id] = count + 1
        return full, result

    def claim(self, kind: str, set_id: int) -> str:
        """A name to use again and again, until the epoch ends; the same on all ranks if they claim in one order."""
        return self.submit(kind, None, set_id, lambda full: full)[0]

    def reset(self, set_id: int | None = None) -> None:
        """Counts from 0 again: all ranks are at the same place of the program."""
        self.epoch += 1
        self._counts = {key: count for key, count in self._counts.items() if set_id not in (None, key[1])}

    def renew_lock(self) -> None:
        self._lock = threading.Lock()


names = Names()
session.on_start(names.reset)
# In a forked child nobody is left to release a lock that another thread held. The core refuses what is asked there.
os.register_at_fork(after_in_child=names.renew_lock)
