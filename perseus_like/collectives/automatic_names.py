"""Names of requests. A request has the same name on every rank, and no other request in flight has this name."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from ..session import session


class Names:
    """Automatic names such as `allreduce.noname.N`, with a counter for each verb and process set.

    Only calls that succeed are counted, so a call that fails on one rank leaves the ranks' counters equal.
    """

    def __init__(self) -> None:
        self.epoch = 0  # grows with each reset
        self._counts: dict[tuple[str, int], int] = {}
        self._lock = threading.Lock()

    def submit(
        self, verb: str, name: str | None, set_id: int, call: Callable[..., Any], *arguments: Any
    ) -> tuple[str, Any]:
        """Calls `call` with the full name and the arguments. Returns the full name and the result."""
        if name is not None:
            full = f"{verb}.{name}"
            return full, call(full, *arguments)
        with self._lock:
            count = self._counts.get((verb, set_id), 0)
            full = f"{verb}.noname.{count}"
            result = call(full, *arguments)
            self._counts[verb, set_id] = count + 1
        return full, result

    def reserve(self, kind: str, set_id: int) -> str:
        """Returns a name that can be used repeatedly until the epoch ends.

        The name is the same on all ranks if they reserve names in the same order.
        """
        return self.submit(kind, None, set_id, lambda full: full)[0]

    def reset(self, set_id: int | None = None) -> None:
        """Resets the counters. All ranks must be at the same point of the program."""
        self.epoch += 1
        self._counts = {key: count for key, count in self._counts.items() if set_id not in (None, key[1])}

    def renew_lock(self) -> None:
        self._lock = threading.Lock()


names = Names()
session.on_start(names.reset)
# In a forked child, a lock that another thread held would never be released. The core refuses requests of the child.
os.register_at_fork(after_in_child=names.renew_lock)
