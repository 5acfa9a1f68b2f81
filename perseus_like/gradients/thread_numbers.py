"""Numbers of a rank's threads, which are the same on all ranks whose programs start the same threads."""

from __future__ import annotations

import itertools
import os
import re
import threading
import weakref
import zlib
from collections import defaultdict

# Their threads execute whatever task comes next, so the ranks have a task in different threads.
_POOLS = ("concurrent.futures.thread", "multiprocessing.pool", "distributed.threadpoolexecutor")
_NUMBERS = 64  # they repeat after so many, so that a program with a thread for each step has few of them

# Threads may have names with numbers, which differ if one rank starts more threads of other kinds.
_Kind = tuple[type, str]
_lock = threading.Lock()  # guards the rest
_numbers: weakref.WeakKeyDictionary[threading.Thread, int] = weakref.WeakKeyDictionary()
_counters: defaultdict[_Kind, itertools.count[int]] = defaultdict(itertools.count)


def mark_of_thread() -> tuple[int, str] | None:
    """Returns a number that identifies the current thread, and its description; None for the main thread and in pools.

    Threads of one class, and of equal names apart from digits, are numbered in the order in which they were started: if
    the first of them asks, all that run get a number. So the ranks' threads may ask in any order.
    """
    thread = threading.current_thread()
    if thread is threading.main_thread() or not _is_of_program(thread):
        return None
    kind = _kind_of(thread)
    with _lock:
        if thread not in _numbers:
            started = [each for each in threading.enumerate() if _kind_of(each) == kind and each not in _numbers]
            for each in sorted(started, key=_numbers_in_name):
                _numbers[each] = next(_counters[kind]) % _NUMBERS
        number = _numbers[thread]
    name = kind[1]
    return 1 + zlib.crc32(
        name.encode()
    ) % 1024 * _NUMBERS + number, f"gradients of thread {number} of those named {name!r}"


def _is_of_program(thread: threading.Thread) -> bool:
    """Returns False for a thread of a pool, and for one that was not started by Python."""
    target = getattr(thread, "_target", None)
    return not isinstance(thread, threading._DummyThread) and getattr(target, "__module__", None) not in _POOLS


def _kind_of(thread: threading.Thread) -> _Kind:
    return type(thread), re.sub(r"\d+", "N", thread.name)


def _numbers_in_name(thread: threading.Thread) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", thread.name)]


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


# In a forked child, a lock that another thread held would never be released.
os.register_at_fork(after_in_child=_renew_lock)
