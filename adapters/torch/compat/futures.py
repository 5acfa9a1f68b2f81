"""Callbacks of torch's futures."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

Callback = Callable[[Any], Any]


def watch_futures(within: Callable[[Any, Callback], Callback], follow: Callable[[Any, Any], None], wait: Any) -> None:
    """Has all callbacks and waits of torch's futures go through these functions.

    `within(future, callback)` gives the callback to use, `follow(future, following)` is told of each future that then()
    makes, `wait(original, future)` replaces the wait.

    Relies on: `torch._C.Future` having `then`, `add_done_callback` and `wait` that can be replaced. Futures are objects
    of C++, which then() makes anew.
    Tried with: all.
    Notices: a method is missing, or cannot be set.
    Lost then: the first `get_future()` fails with torch's AttributeError or TypeError.
    """
    cls: Any = torch._C.Future
    then, add_done_callback, original_wait = cls.then, cls.add_done_callback, cls.wait

    def then_within(self: Any, callback: Callback) -> Any:
        following = then(self, within(self, callback))
        follow(self, following)
        return following

    cls.then = then_within
    cls.add_done_callback = lambda self, callback: add_done_callback(self, within(self, callback))
    cls.wait = functools.wraps(original_wait)(lambda self: wait(original_wait, self))
