"""Tests of the numbers of threads, which the ranks compare."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from perseus_like.gradients.thread_numbers import mark_of_thread


class _Asking(threading.Thread):
    """A thread that asks for its number once the test says so."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name=name)
        self._may_ask = threading.Event()
        self._mark: tuple[int, str] | None = None

    def run(self) -> None:
        self._may_ask.wait()
        self._mark = mark_of_thread()

    def ask(self) -> tuple[int, str]:
        self._may_ask.set()
        self.join()
        assert self._mark is not None
        return self._mark


def _numbers(threads: Sequence[_Asking], order: Sequence[int]) -> list[int]:
    """Returns the numbers of threads that ask in this order, relative to that of the first thread."""
    for thread in threads:
        thread.start()
    for index in order:
        threads[index].ask()
    return [thread.ask()[0] - threads[0].ask()[0] for thread in threads]


def test_threads_are_numbered_as_they_were_started() -> None:
    """The numbers do not depend on the order in which the threads ask, nor on threads that have ended."""
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        assert _numbers([_Asking("worker") for _ in order], order) == [0, 1, 2]


def test_threads_with_numbers_in_their_names() -> None:
    """A rank that started other threads before has higher numbers in Python's names."""
    assert _numbers([_Asking("reader-9"), _Asking("reader-10")], [1, 0]) == [0, 1]
    other = threading.Thread(target=lambda: None)
    other.start()
    assert _numbers([_Asking(), _Asking()], [1, 0]) == [0, 1]
    other.join()


def test_threads_of_other_names_have_other_numbers() -> None:
    threads = [_Asking("actor"), _Asking("learner")]
    assert _numbers(threads, [0, 1])[1] != 0
    assert "of those named 'actor'" in threads[0].ask()[1]


def test_threads_without_a_number() -> None:
    assert mark_of_thread() is None
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(mark_of_thread).result() is None
