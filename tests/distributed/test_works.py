"""Checks how a work calls its handle in the core. The handle of these tests records the calls."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from perseus_like.torch.distributed.works import PerseusWork


class Handle:
    """The handle of a complete collective. `is_over` returns True if the device has executed the collective."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.over = True
        self.waited = threading.Event()

    def wait_for(self, limit: float) -> bool:
        self.calls.append("wait")
        self.waited.set()
        return True

    def extend(self) -> None:
        self.calls.append("add")

    def done(self) -> bool:
        return True

    def is_over(self) -> bool:
        return self.over


def make_work(handle: Handle, finish: Any) -> Any:
    return PerseusWork("all_gather #0", handle, [], 60.0, finish)


def test_device_work_of_finish_is_added_to_the_handle() -> None:
    handle = Handle()
    work = make_work(handle, lambda _: handle.calls.append("finish"))
    work.wait()
    work.wait()
    assert handle.calls == ["wait", "finish", "add", "wait"]


def test_a_second_waiter_waits_for_finish_too() -> None:
    """A second waiter also waits until the first waiter has finished the work.

    Otherwise it would continue before another device stream has written the result.
    """
    handle = Handle()
    finishing, go_on = threading.Event(), threading.Event()

    def finish(_: Any) -> None:
        finishing.set()
        assert go_on.wait(60)

    work = make_work(handle, finish)
    first = threading.Thread(target=work.wait)
    first.start()
    assert finishing.wait(60)
    handle.waited.clear()
    second = threading.Thread(target=work.wait)
    second.start()
    assert handle.waited.wait(60)
    go_on.set()
    for thread in (first, second):
        thread.join(60)
    assert handle.calls == ["wait", "wait", "add", "wait"]


def test_a_failure_to_finish_is_raised_each_time() -> None:
    def fail(_: Any) -> None:
        raise ValueError("no room")

    work = make_work(Handle(), fail)
    for _ in range(2):
        with pytest.raises(ValueError, match="no room"):
            work.wait()


def test_a_work_is_complete_when_the_device_has_executed_it() -> None:
    handle = Handle()
    work = make_work(handle, None)
    handle.over = False
    assert not work.is_completed()
    handle.over = True
    assert work.is_completed()
    assert work.is_success()
