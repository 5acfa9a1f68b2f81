"""Queries of the state of torch's autograd engine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import torch

NO_BACKWARD = -1


def current_backward() -> int:
    """Returns a number of the backward pass that runs on this thread, or NO_BACKWARD.

    Relies on: `torch._C._current_graph_task_id()`.
    Tried with: all.
    Notices: the function is missing, or gives another number outside of backward passes.
    Lost then: our DistributedDataParallel fails at its first backward pass with torch's AttributeError.
    """
    return int(torch._C._current_graph_task_id())


def at_end_of_backward(callback: Callable[[], None]) -> None:
    """Has `callback` called when the backward pass that runs on this thread ends.

    Relies on: `torch.autograd.Variable._execution_engine.queue_callback(callback)`.
    Tried with: all.
    Notices: the method is missing, or does not call.
    Lost then: our DistributedDataParallel fails at its first backward pass with torch's AttributeError.
    """
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def is_called_by_backward(package: str) -> bool:
    """Returns whether autograd's C++ called the first function of `package` on the stack, and not Python.

    Relies on: the Python function `_engine_run_backward`, from which torch enters its engine: what C++ calls from there
    on the same thread has its frame as the caller.
    Tried with: all; torch 2.1 enters it from `torch.autograd.backward` itself.
    Notices: hooks of tensors have another caller.
    Lost then: the buckets of torch's DistributedDataParallel stay in private memory, where reducing is slower.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__package__") in (package, __package__):
        frame = frame.f_back
    return frame is not None and is_entrance(frame)


def is_entrance(frame: FrameType) -> bool:
    """Returns whether this is the function from which torch enters its engine."""
    is_in_autograd = str(frame.f_globals.get("__name__")).startswith("torch.autograd")
    return is_in_autograd and frame.f_code.co_name in ("_engine_run_backward", "backward")
