"""horovod.runner.util.threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any


def in_thread(
    target: Callable[..., Any],
    args: tuple[Any, ...] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Starts `target(*args)` on a thread of its own. `silent`: its exceptions are dropped."""
    if not isinstance(args, tuple):
        raise ValueError(f"args is {args!r}, but must be a tuple; a single argument is (argument,)")

    def call() -> None:
        with contextlib.suppress(BaseException) if silent else contextlib.nullcontext():
            target(*args)

    thread = threading.Thread(target=call, name=name, daemon=daemon)
    thread.start()
    return thread


__all__ = ["in_thread"]
