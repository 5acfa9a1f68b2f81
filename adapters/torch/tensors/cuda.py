"""Describes CUDA tensors for the core: an address, a device, and the stream on which this thread works.

The core does the rest: it records an event on that stream when a collective is submitted, and makes the stream that is
current in `synchronize` wait for the result. torch.distributed also uses the futures of this module, and the copies of
messages through host memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.futures import Future

from perseus_like.session import session

from ..compat.core import stream_source


class _Bytes:
    """Memory of the core in the form that torch accepts. The tensor keeps the memory alive."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer
        self.__cuda_array_interface__ = {
            "version": 2,
            "typestr": "|u1",
            "shape": (len(buffer),),
            "data": (buffer.address, False),
        }


def over_memory(buffer: Any, dtype: torch.dtype) -> torch.Tensor:
    """Returns a tensor over device memory of the core, which is freed in the order of the stream that waited for it."""
    return flat_over_memory(buffer, dtype).view(buffer.shape)


def flat_over_memory(buffer: Any, dtype: torch.dtype) -> torch.Tensor:
    """Does the same with one dimension, and with a dtype whose elements may differ from the core's."""
    device = torch.device("cuda", buffer.device)
    if len(buffer) == 0:
        return torch.empty(0, dtype=dtype, device=device)
    tensor = torch.as_tensor(_Bytes(buffer), device=device).view(dtype)
    # record_stream() ignores memory that is not of torch's own allocator. Other allocators refuse it with an error, so
    # they get a copy.
    return tensor if torch.cuda.get_allocator_backend() == "native" else tensor.clone()


def require_cuda(tensor: torch.Tensor, what: str = "") -> None:
    """Raises ValueError, which begins with `what`, for a tensor on an accelerator that is not CUDA's."""
    if not tensor.is_cuda:
        raise ValueError(
            f"{what}tensors on {tensor.device} cannot be communicated; CPU and CUDA tensors can: pass tensor.cpu()"
        )
    _register_stream_source()


def device_to_join_on(device: int) -> int:
    """Returns the device for the zeros of a rank that has joined: `device`, or torch's current one if that is -1.

    Returns -1 if torch has not used a device.
    """
    is_initialized: Callable[[], bool] = torch.cuda.is_initialized
    return int(torch.cuda.current_device()) if device < 0 and is_initialized() else device


def new_future(device: int) -> Future[Any]:
    """Returns a future. Its waits and callbacks use streams that wait for the stream on which it was completed."""
    return Future(devices=[torch.device("cuda", device)])


def complete(future: Future[None], device: int) -> None:
    """Completes the future. Its callbacks run with this device as the current one."""
    with torch.cuda.device(device):
        future.set_result(None)


def copied_to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy in pinned host memory. Blocks until the current stream has executed the copy."""
    return pinned_like(tensor).copy_(tensor.detach())


def pinned_like(tensor: torch.Tensor) -> torch.Tensor:
    """Returns pinned host memory of the tensor's shape and dtype."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)


class HostToDeviceCopy:
    """Copies received data from host memory to a CUDA tensor, after earlier uses of the tensor on its stream."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._ready = torch.cuda.current_stream(tensor.device).record_event()

    def __call__(self, source: torch.Tensor) -> None:
        """Copies the data. Blocks until they are there, for all streams."""
        stream = torch.cuda.current_stream(self._tensor.device)
        stream.wait_event(self._ready)
        self._tensor.copy_(source, non_blocking=True)
        stream.synchronize()


@cache
def _register_stream_source() -> None:
    session.core.set_stream_source(stream_source())
