"""CUDA tensors as the core sees them: an address, a device, and the stream that this thread works on.

Everything else is the core's: it records an event on that stream when a collective is asked for, and makes the stream
that is current in `synchronize` wait for the result.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

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
    device = torch.device("cuda", buffer.device)
    if len(buffer) == 0:
        return torch.empty(buffer.shape, dtype=dtype, device=device)
    return torch.as_tensor(_Bytes(buffer), device=device).view(dtype).view(buffer.shape)


def require_cuda(tensor: torch.Tensor) -> None:
    """Of a tensor with a device number. ValueError for accelerators other than CUDA's."""
    if not tensor.is_cuda:
        raise ValueError(
            f"tensors on {tensor.device} cannot be communicated; CPU and CUDA tensors can: pass tensor.cpu()"
        )
    _tell_the_core()


@cache
def _tell_the_core() -> None:
    session.core.set_stream_source(current_stream)
