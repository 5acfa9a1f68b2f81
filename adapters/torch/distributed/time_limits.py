"""Time limits that the caller of a collective gives: in torch's options, or as `timeout`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from torch import Tensor

C = TypeVar("C", bound=type)
_NO_OPTIONS = (Tensor, list, tuple, int)


def limited(*names: str) -> Callable[[C], C]:
    """Class decorator: the works of these methods have the time limit of the call, if it gives one."""

    def decorate(cls: C) -> C:
        for name in names:
            setattr(cls, name, _limited(getattr(cls, name)))
        return cls

    return decorate


def _limited(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *arguments: Any, timeout: timedelta | None = None, **named: Any) -> Any:
        if arguments and isinstance(arguments[-1], timedelta):
            *arguments, timeout = arguments  # type: ignore[assignment]
        work = method(self, *arguments, **named)
        if timeout is None:
            options = named.get("opts", arguments[-1] if arguments else None)
            timeout = None if isinstance(options, _NO_OPTIONS) else getattr(options, "timeout", None)
        if timeout is not None:
            work.limit_to(timeout)
        return work

    return call
