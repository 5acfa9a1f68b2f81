"""Keeps torch.compile out of our methods, which C++ calls also while Dynamo looks at every Python frame."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

C = TypeVar("C", bound=type)

try:
    _dynamo: Any = import_module("torch._C._dynamo.eval_frame")
except ImportError:  # a torch whose Dynamo is another: it may look
    _dynamo = None


def untraced(*names: str) -> Callable[[C], C]:
    """Class decorator: the methods of these names, inherited ones too, run without Dynamo.

    torch.compiler.disable does the same, and imports all of Dynamo for it, which takes seconds.
    """

    def decorate(cls: C) -> C:
        for name in names if _dynamo is not None else ():
            setattr(cls, name, _outside(getattr(cls, name)))
        return cls

    return decorate


def _outside(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        before = _dynamo.set_eval_frame(None)
        try:
            return method(*arguments, **options)
        finally:
            _dynamo.set_eval_frame(before)

    untouched: Any = call
    _skip(untouched.__code__)
    untouched._torchdynamo_disable = True
    return call


def _skip(code: Any) -> None:
    """Dynamo must not compile this one function, in whose body it is turned off."""
    if hasattr(_dynamo, "skip_code"):  # earlier releases
        _dynamo.skip_code(code)
    else:
        action = _dynamo._FrameAction
        _dynamo.set_code_exec_strategy(code, _dynamo._FrameExecStrategy(action.SKIP, action.DEFAULT))
