"""torch tensors as the core sees them, and tensors in memory that the ranks of a host share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from perseus_like.collectives import Collectives
from perseus_like.host_memory.registration import LARGE_ELEMENTS
from perseus_like.session import session
from perseus_like.tables import DType
from perseus_like.tensor import View

from ..compat.tensor_parts import awaited
from .cuda import over_memory, require_cuda
from .shared_memory import register_if_shared
from .tensor_memory import address_of, write, writing

_NUMBERS = {
    torch.uint8: int(DType.uint8),
    torch.int8: int(DType.int8),
    torch.int16: int(DType.int16),
    torch.int32: int(DType.int32),
    torch.int64: int(DType.int64),
    torch.float16: int(DType.float16),
    torch.bfloat16: int(DType.bfloat16),
    torch.float32: int(DType.float32),
    torch.float64: int(DType.float64),
    torch.bool: int(DType.boolean),
}
# A complex tensor is communicated as its real and imaginary parts, which torch.view_as_real shows as a last dimension.
_PARTS = {torch.complex64: torch.float32, torch.complex128: torch.float64}
# These are variables of this module, because they are looked up for every tensor that is communicated.
_TENSOR, _STRIDED = torch.Tensor, torch.strided
_PLAIN = (torch.Tensor, torch.nn.Parameter)  # no subclass, which may stand for another tensor
_DTYPES = {number: dtype for dtype, number in _NUMBERS.items()}


class TorchTensors:
    """The adapter that `perseus_like.collectives` works through."""

    def contiguous(self, tensor: torch.Tensor) -> torch.Tensor:
        is_plain = type(tensor) in _PLAIN
        if not is_plain and not isinstance(tensor, _TENSOR):
            raise ValueError(f"a torch.Tensor is needed, not {type(tensor).__name__}")
        if tensor.layout is not _STRIDED:
            raise ValueError(f"a {tensor.layout} tensor is not a dense one; see sparse_allreduce_async()")
        if not is_plain and (result := awaited(tensor)) is not tensor:
            return result.clone()
        if tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj():
            return tensor
        address_of(tensor)
        return tensor.detach().resolve_conj().resolve_neg().contiguous()

    def view(self, tensor: torch.Tensor) -> View:
        number, shape = _NUMBERS.get(tensor.dtype), tensor.shape
        if number is None:
            number, shape = _number_of(tensor.dtype), torch.Size((*shape, 2))
        return _view_of(tensor, number, shape)

    def direct_view(self, tensor: torch.Tensor) -> View | None:
        # It runs for every small gradient, so it asks no real tensor whether it is a conjugate.
        number = _NUMBERS.get(tensor.dtype) if type(tensor) in _PLAIN else None
        if number is None or tensor.layout is not _STRIDED or not tensor.is_contiguous() or tensor.is_neg():
            return None
        return _view_of(tensor, number, tensor.shape)

    def is_complex(self, tensor: torch.Tensor) -> bool:
        return isinstance(tensor, _TENSOR) and tensor.is_complex()

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(tensor)

    def from_buffer(self, buffer: Any, like: torch.Tensor | None = None) -> torch.Tensor:
        dtype = _DTYPES[buffer.dtype]
        if like is not None and like.is_complex():
            return torch.view_as_complex(self.from_buffer(buffer, like.real))
        if buffer.device >= 0:
            return over_memory(buffer, dtype)
        if len(buffer) == 0:
            tensor = torch.empty(buffer.shape, dtype=dtype)
        else:
            tensor = torch.frombuffer(buffer, dtype=dtype).view(buffer.shape)
        return tensor if like is None or like.device.type == "cpu" else tensor.to(like.device)

    def copy_into(self, target: torch.Tensor, source: torch.Tensor) -> None:
        with writing(target):
            write(target, source)


tensors = TorchTensors()
# The collectives of torch tensors, by the verbs that all adapters have.
collectives: Collectives[torch.Tensor] = Collectives(tensors)


def empty(shape: int | Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """Returns an uninitialized CPU tensor in memory that the ranks of this host share.

    Collectives reduce such a tensor in place without copying it, which is the fastest way.

    Args:
        shape: the shape, or the number of elements of a one-dimensional tensor.
        dtype: the dtype. The default is `torch.get_default_dtype()`.

    Returns:
        A tensor whose memory is freed when no tensor refers to it.

    Raises:
        ValueError: the dtype cannot be communicated.
        UnavailableError: no such memory is left.
        NotInitializedError: `init` was not called.

    Examples:
        >>> gradients = hvd.empty((2, 3)).fill_(hvd.rank())
        >>> hvd.allreduce_(gradients, op=hvd.Max).shape
        torch.Size([2, 3])
    """
    sizes = torch.Size([shape] if isinstance(shape, int) else shape)
    dtype = dtype or torch.get_default_dtype()
    number = _number_of(dtype)
    if dtype in _PARTS:
        return torch.view_as_complex(tensors.from_buffer(session.core.allocate([*sizes, 2], number)))
    return tensors.from_buffer(session.core.allocate(list(sizes), number))


def _view_of(tensor: torch.Tensor, number: int, shape: torch.Size) -> View:
    device, address = tensor.get_device(), address_of(tensor)
    if device >= 0:
        require_cuda(tensor)
    elif tensor.numel() >= LARGE_ELEMENTS:
        register_if_shared(tensor)
    return (address, number, shape, device)


def _number_of(dtype: torch.dtype) -> int:
    """Returns the core's number of a dtype, or of the dtype of its parts if it is a complex one."""
    number = _NUMBERS.get(_PARTS.get(dtype, dtype))
    if number is None:
        names = ", ".join(str(dtype) for dtype in (*_NUMBERS, *_PARTS))
        raise ValueError(f"{dtype} tensors cannot be communicated; {names} can")
    return number
