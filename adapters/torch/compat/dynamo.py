"""Decorators that keep code away from torch.compile."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch._compile import _disable_dynamo

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


def compiling_check() -> Callable[[], bool]:
    """Returns the function that returns whether torch.compile traces its call: torch's own, since hooks ask often.

    Relies on: `torch.compiler.is_compiling()` or, before torch 2.3, `torch._dynamo.external_utils.is_compiling()`.
    Tried with: all.
    Notices: the function is missing in a Dynamo that is loaded, or is true outside of torch.compile.
    Lost then: our DistributedDataParallel fails at its first backward pass with torch's AttributeError.
    """

    def _before_torch_2_3() -> bool:
        dynamo = sys.modules.get("torch._dynamo")
        return dynamo is not None and bool(dynamo.external_utils.is_compiling())

    return getattr(torch.compiler, "is_compiling", _before_torch_2_3)


is_compiling = compiling_check()


def untraced(function: F) -> F:
    """Decorator: Dynamo does not look at this function, which calls `pause(None)` first, also if C++ calls it.

    Relies on: `torch._C._dynamo.eval_frame.set_eval_frame`, and `skip_code` or, since torch 2.7,
    `set_code_exec_strategy`. C++ calls methods of process groups and works also while Dynamo looks at every frame.
    Tried with: all.
    Notices: the module or a function is missing; then functions stay as they are.
    Lost then: compiled programs trace into these functions, and may fail with Dynamo's error.
    """
    if _CAN_SKIP:
        untouched: Any = function
        if hasattr(_dynamo, "skip_code"):
            _dynamo.skip_code(untouched.__code__)
        else:
            action = _dynamo._FrameAction
            strategy = _dynamo._FrameExecStrategy(action.SKIP, action.DEFAULT)
            _dynamo.set_code_exec_strategy(untouched.__code__, strategy)
        untouched._torchdynamo_disable = True
    return function


def without_dynamo(method: F) -> F:
    """Decorator: the method, and all that it calls, runs without Dynamo.

    Relies on: `untraced`, and `pause` below.
    Tried with: all.
    Notices: as `untraced`.
    Lost then: as there.
    """

    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        before = pause(None)
        try:
            return method(*arguments, **options)
        finally:
            pause(before)

    untouched: Any = untraced(call)
    return untouched  # type: ignore[no-any-return]


_has_strategy = hasattr(_dynamo, "set_code_exec_strategy") and hasattr(_dynamo, "_FrameExecStrategy")
_CAN_SKIP = hasattr(_dynamo, "set_eval_frame") and (hasattr(_dynamo, "skip_code") or _has_strategy)
# `pause(None)` turns Dynamo off in this thread and returns what turns it on again.
pause: Callable[[Any], Any] = _dynamo.set_eval_frame if _CAN_SKIP else lambda before: None
