"""torch's autograd engine and its storages."""

from __future__ import annotations

import functools
from collections.abc import Callable

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


def stream_source() -> Callable[[int], int]:
    """Returns a function that returns the handle of torch's current stream on a device, on the calling thread.

    Relies on: `torch._C._cuda_getCurrentRawStream(device)`, which every build for CUDA has.
    Tried with: none, because no GPU was available. Read in the sources of torch 2.1 and 2.13.
    Notices: the function is missing in a build for CUDA.
    Lost then: each request makes a `torch.cuda.Stream`, which takes microseconds.
    """
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return raw or (lambda device: int(torch.cuda.current_stream(device).cuda_stream))


def copy_all(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copies each source to its target, by few kernels.

    Relies on: `torch._foreach_copy_(targets, sources)`.
    Tried with: all.
    Notices: the function is missing, or does not copy.
    Lost then: each tensor is copied by a call of its own.
    """
    copy = getattr(torch, "_foreach_copy_", None)
    if copy is not None:
        copy(targets, sources)
        return
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


@functools.cache
def keeps_identity() -> bool:
    """Returns whether a weak reference to a storage ends when the storage's memory goes.

    Relies on: `Tensor.untyped_storage()` returning the same object each time.
    Tried with: all. torch 2.1 returns a new object each time, and weak references to it dangle, so this is False.
    Notices: two calls return two objects.
    Lost then: the buckets of torch's DistributedDataParallel stay in private memory, and tensors that torch shares are
    copied, where reducing is slower.
    """
    tensor = torch.zeros(1)
    return tensor.untyped_storage() is tensor.untyped_storage()
