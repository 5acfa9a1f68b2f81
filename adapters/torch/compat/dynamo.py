"""Decorators that keep code away from torch.compile."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch._compile import _disable_dynamo

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

_dynamo: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)


def not_compiled(function: F) -> F:
    """Decorator: torch.compile leaves this function out.

    Relies on: `torch._compile._disable_dynamo`. torch.compiler.disable does the same, and imports all of Dynamo for it,
    which takes seconds.
    Tried with: all.
    Notices: importing it fails.
    Lost then: `import perseus_like.torch` fails with torch's ImportError.
    """
    kept: Any = _disable_dynamo(function)
    return kept  # type: ignore[no-any-return]


def is_compiling() -> bool:
    """Returns whether torch.compile traces this call.

    Relies on: `torch.compiler.is_compiling()` or, before torch 2.3, `torch._dynamo.external_utils.is_compiling()`.
    Tried with: all.
    Notices: the function is missing in a Dynamo that is loaded, or is true outside of torch.compile.
    Lost then: our DistributedDataParallel fails at its first backward pass with torch's AttributeError.
    """
    function: Any = getattr(torch.compiler, "is_compiling", None)
    if function is None and "torch._dynamo" in sys.modules:
        function = sys.modules["torch._dynamo"].external_utils.is_compiling
    return function is not None and bool(function())


def no_dynamo(*names: str) -> Callable[[C], C]:
    """Class decorator: the methods of these names, inherited ones too, run without Dynamo, also if C++ calls them.

    Relies on: `torch._C._dynamo.eval_frame.set_eval_frame`, and `skip_code` or, since torch 2.7,
    `set_code_exec_strategy`. C++ calls methods of process groups and works also while Dynamo looks at every frame.
    Tried with: all.
    Notices: the module or a function is missing; then methods stay as they are.
    Lost then: compiled programs trace into these methods, and may fail with Dynamo's error.
    """

    def decorate(cls: C) -> C:
        for name in names if _can_skip() else ():
            setattr(cls, name, _outside(getattr(cls, name)))
        return cls

    return decorate


def _can_skip() -> bool:
    has_strategy = hasattr(_dynamo, "set_code_exec_strategy") and hasattr(_dynamo, "_FrameExecStrategy")
    return hasattr(_dynamo, "set_eval_frame") and (hasattr(_dynamo, "skip_code") or has_strategy)


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
    if hasattr(_dynamo, "skip_code"):
        _dynamo.skip_code(code)
    else:
        action = _dynamo._FrameAction
        _dynamo.set_code_exec_strategy(code, _dynamo._FrameExecStrategy(action.SKIP, action.DEFAULT))
