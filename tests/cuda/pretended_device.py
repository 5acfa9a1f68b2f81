"""A plugin of pytest, for worlds of torch without a GPU: what is on the CPU is said to be on CUDA device 0.

Its driver is the libcuda.so.1 of tests/cpp/fake_cuda, whose memory is the host's, and whose calls are done when they
return; so torch needs to know nothing of it. Everything between torch's tensors and the driver is the real thing.
"""

from __future__ import annotations

from typing import Any

import torch
from array_interface import take_in  # type: ignore[import-not-found]
from torch.futures import Future

import perseus_like.torch.cuda as cuda
import perseus_like.torch.tensors as tensors
from perseus_like.session import session

device = 0  # on which tensors are said to be
current_device: int | None = None  # torch's, once it has used a device


class _Torch:
    """torch as cuda.py sees it."""

    device = torch.device
    Tensor = torch.Tensor

    class cuda:  # noqa: N801
        is_initialized = staticmethod(lambda: current_device is not None)
        current_device = staticmethod(lambda: current_device)
        get_allocator_backend = staticmethod(lambda: "native")

    @staticmethod
    def as_tensor(data: Any, **_: Any) -> Any:
        return take_in(data.__cuda_array_interface__, data)

    @staticmethod
    def empty(*arguments: Any, dtype: torch.dtype, **_: Any) -> torch.Tensor:
        return torch.empty(*arguments, dtype=dtype)


vars(cuda).update(
    torch=_Torch,
    new_future=lambda device: Future(),
    complete=lambda future, device: future.set_result(None),
)
vars(tensors).update(require_cuda=lambda tensor: None)
torch.Tensor.get_device = lambda self: device  # type: ignore[method-assign]
session.core.set_stream_source(lambda device: 0)
