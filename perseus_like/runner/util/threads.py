"""horovod.runner.util.threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


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


def execute_function_multithreaded(
    fn: Callable[..., T],
    args_list: Sequence[Sequence[Any]],
    block_until_all_done: bool = True,
    max_concurrent_executions: int = 1000,
) -> dict[int, T] | None:
    """Calls `fn(*arguments)` on threads for each item of `args_list`. Returns the results by index.

    Returns None at once if `block_until_all_done` is false. The first exception of `fn` is raised. The threads are
    daemons: the end of the program does not wait for them.
    """
    futures: list[Future[T]] = [Future() for _ in args_list]
    calls = iter(enumerate(args_list))
    taking = threading.Lock()

    def work() -> None:
        while True:
            with taking:
                index, arguments = next(calls, (-1, ()))
            if index < 0:
                return
            try:
                futures[index].set_result(fn(*arguments))
            except BaseException as error:
                futures[index].set_exception(error)

    for _ in range(min(max_concurrent_executions, len(args_list))):
        in_thread(work)
    if not block_until_all_done:
        return None
    return {index: future.result() for index, future in enumerate(futures)}


def on_event(
    event: threading.Event,
    func: Callable[..., Any],
    args: tuple[Any, ...] = (),
    stop: threading.Event | None = None,
    check_stop_interval_s: float = 1.0,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Calls `func(*args)` on a thread once `event` is set, unless `stop` is set first.

    ValueError for no event, and for a thread that is no daemon and has no `stop`.
    """
    if event is None:
        raise ValueError("event is None, but must be a threading.Event")
    if stop is None and not daemon:
        raise ValueError("a thread that is no daemon needs the event stop")

    def wait_and_call() -> None:
        while not event.wait(check_stop_interval_s):
            if stop is not None and stop.is_set():
                return
        if stop is None or not stop.is_set():
            func(*args)

    if not isinstance(args, tuple):
        raise ValueError(f"args is {args!r}, but must be a tuple; a single argument is (argument,)")
    return in_thread(wait_and_call, daemon=daemon, silent=silent)


__all__ = ["execute_function_multithreaded", "in_thread", "on_event"]
