"""CUDA tensors as the core sees them: an address, a device, and the stream that this thread works on.

Everything else of the verbs is the core's: it records an event on that stream when a collective is asked for, and makes
the stream that is current in `synchronize` wait for the result. Futures, and messages by way of host memory, are those
of torch.distributed.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.futures import Future

from perseus_like.session import session


def current_stream(device: int) -> int:
    """The handle of the stream on which torch works on this device, on this thread."""
    return int(torch.cuda.current_stream(device).cuda_stream)


class _Bytes:
    """Memory of the core's as torch takes it in; the tensor keeps it."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer
        self.__cuda_array_interface__ = {
            "version": 2,
            "typestr": "|u1",
            "shape": (len(buffer),),
            "data": (buffer.address, False),
        }


def over_memory(buffer: Any, dtype: torch.dtype) -> torch.Tensor:
    """A tensor over device memory of the core, which is freed in the order of the stream that waited for it."""
    return flat_over_memory(buffer, dtype).view(buffer.shape)


def flat_over_memory(buffer: Any, dtype: torch.dtype) -> torch.Tensor:
    """The same with one dimension, of a type that may have other elements than the core's."""
    device = torch.device("cuda", buffer.device)
    if len(buffer) == 0:
        return torch.empty(0, dtype=dtype, device=device)
    return torch.as_tensor(_Bytes(buffer), device=device).view(dtype)


def require_cuda(tensor: torch.Tensor, what: str = "") -> None:
    """Of a tensor that is not on the CPU. ValueError, which begins with `what`, for accelerators other than CUDA's."""
    if not tensor.is_cuda:
        raise ValueError(
            f"{what}tensors on {tensor.device} cannot be communicated; CPU and CUDA tensors can: pass tensor.cpu()"
        )
    _tell_the_core()


def new_future(device: int) -> Future[Any]:
    """Who waits for it, and its callbacks, work on streams that come after the one on which it was completed."""
    return Future(devices=[torch.device("cuda", device)])


def complete(future: Future[None], device: int) -> None:
    """Sets the future; its callbacks find this device as the current one."""
    with torch.cuda.device(device):
        future.set_result(None)


def fetched(tensor: torch.Tensor) -> torch.Tensor:
    """The same in pinned host memory. Blocks until the current stream has come so far."""
    return landing(tensor).copy_(tensor.detach())


def landing(tensor: torch.Tensor) -> torch.Tensor:
    """Pinned host memory for as much."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)


class Delivery:
    """Brings to a CUDA tensor what has landed in host memory, after whatever used the tensor when this was made."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._ready = torch.cuda.current_stream(tensor.device).record_event()

    def __call__(self, landed: torch.Tensor) -> None:
        """Blocks until it is there, for all streams."""
        stream = torch.cuda.current_stream(self._tensor.device)
        stream.wait_event(self._ready)
        self._tensor.copy_(landed, non_blocking=True)
        stream.synchronize()


@cache
def _tell_the_core() -> None:
    session.core.set_stream_source(current_stream)
