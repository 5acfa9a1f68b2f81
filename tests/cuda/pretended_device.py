"""A plugin of pytest, for worlds of torch without a GPU: what is on the CPU is said to be on CUDA device 0.

Its driver is the libcuda.so.1 of tests/cpp/fake_cuda, whose memory is the host's, and whose calls are done when they
return; so torch needs to know nothing of it. Everything between torch's tensors and the driver is the real thing.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

import perseus_like.torch.tensors as module
from perseus_like.session import session
from perseus_like.tensor import View
from perseus_like.torch.tensors import TorchTensors

_view = TorchTensors.view


def _on_device(self: TorchTensors, tensor: torch.Tensor) -> View:
    address, dtype, shape, _ = _view(self, tensor)
    return address, dtype, shape, 0


_kept: list[Any] = []


def _over_memory(buffer: Any, dtype: torch.dtype) -> torch.Tensor:
    """What the core has made on the device."""
    assert buffer.device == 0
    if len(buffer) == 0:
        return torch.empty(buffer.shape, dtype=dtype)
    _kept.append(buffer)
    raw = (ctypes.c_char * len(buffer)).from_address(buffer.address)
    return torch.frombuffer(raw, dtype=dtype).view(buffer.shape)


module.over_memory = _over_memory  # type: ignore[attr-defined]
TorchTensors.view = _on_device  # type: ignore[method-assign]
session.core.set_stream_source(lambda device: 0)
