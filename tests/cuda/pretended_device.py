"""A pytest plugin for worlds of torch without a GPU. It makes tensors on the CPU look as if they were on CUDA device 0.

The CUDA driver is libcuda.so.1 of tests/cpp/fake_cuda. Its device memory is host memory, and its calls are complete
when they return. The code between torch's tensors and the driver is the library's real code.
"""

from __future__ import annotations

from typing import Any

import torch
from array_interface import tensor_from  # type: ignore[import-not-found]
from torch.futures import Future

import perseus_like.torch.tensors as tensors
import perseus_like.torch.tensors.cuda as cuda
from perseus_like.session import session

device = 0  # the number of the device that tensors report
current_device: int | None = None  # the number of torch's current device, or None before torch has used a device


class _Torch:
    """Takes the place of the module torch in perseus_like.torch.tensors.cuda."""

    device = torch.device
    Tensor = torch.Tensor

    class cuda:  # noqa: N801
        is_initialized = staticmethod(lambda: current_device is not None)
        current_device = staticmethod(lambda: current_device)
        get_allocator_backend = staticmethod(lambda: "native")

    @staticmethod
    def as_tensor(data: Any, **_: Any) -> Any:
        return tensor_from(data.__cuda_array_interface__, data)

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
