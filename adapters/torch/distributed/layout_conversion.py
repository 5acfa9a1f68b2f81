"""Converts tensors into the form in which the core communicates them: row-major, flat, with a dtype of the core."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from perseus_like.host_memory.registration import LARGE_ELEMENTS
from perseus_like.tensor import View

from ..compat.tensor_parts import viewed_complex
from ..tensors import _NUMBERS, cuda
from ..tensors.shared_memory import register_if_shared
from ..tensors.tensor_memory import NO_OFFSET, address_of, write

_NAMES = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
# torch has unsigned types of these sizes since 2.3.
_SIGNED = tuple(name for name in ("int16", "int32", "int64") if hasattr(torch, f"u{name}"))
BYTE_FLOATS = frozenset(getattr(torch, name) for name in _NAMES if hasattr(torch, name))
# The wire dtype of each other dtype, and the number of its elements in one of torch's. The bits stay the same.
_AS: dict[torch.dtype, tuple[torch.dtype, int]] = {
    torch.complex64: (torch.float32, 2),
    torch.complex128: (torch.float64, 2),
    **{getattr(torch, f"u{name}"): (getattr(torch, name), 1) for name in _SIGNED},
    **dict.fromkeys(BYTE_FLOATS, (torch.uint8, 1)),
}
_CORE = {**_NUMBERS, **{dtype: _NUMBERS[other] for dtype, (other, _) in _AS.items()}}
_WIDTH = {dtype: width for dtype, (_, width) in _AS.items()}
_SHORT_LIST = 16
UNSIGNED = frozenset(getattr(torch, f"u{name}") for name in _SIGNED)
COMPLEX = frozenset({torch.complex64, torch.complex128})


class Flat(NamedTuple):
    """A tensor with row-major memory, and the tensor that the result is copied to in the end (None: no copy)."""

    tensor: Tensor
    target: Tensor | None

    def finish(self) -> None:
        if self.target is not None:
            write(self.target, self.tensor.view(self.target.shape))


def finish_all(flats: Sequence[Flat]) -> Callable[[Any], None] | None:
    """Returns a function that copies the results to their targets, or None if they are there already."""
    if all(flat.target is None for flat in flats):
        return None

    def finish(_: Any) -> None:
        for flat in flats:
            flat.finish()

    return finish


def is_direct(tensor: Tensor) -> bool:
    """Returns whether the core reads and writes this tensor on the CPU as it is, if it has memory."""
    is_known = tensor.layout is torch.strided and tensor.is_cpu and tensor.dtype in _CORE
    return is_known and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _is_row_major(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def dense(what: str, tensor: Tensor) -> Tensor:
    """Returns the tensor if its memory is row-major, else such a copy. ValueError if the tensor is not supported."""
    check(what, tensor)
    if _is_row_major(tensor):
        return tensor
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def in_place(what: str, tensor: Tensor) -> Flat:
    """Prepares a tensor that is read and written."""
    source = dense(what, tensor)
    return Flat(source, None if source is tensor else tensor)


def for_output(what: str, tensor: Tensor) -> Flat:
    """Prepares a tensor that is only written."""
    check(what, tensor)
    if _is_row_major(tensor):
        return Flat(tensor, None)
    return Flat(tensor.new_empty(tensor.shape), tensor)


def check(what: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{what}: a torch.Tensor is needed, not {type(tensor).__name__}")
    if tensor.layout is not torch.strided:
        raise ValueError(f"{what}: a {tensor.layout} tensor is not supported; all_reduce supports sparse COO tensors")
    if not tensor.is_cpu:
        cuda.require_cuda(tensor, f"{what}: ")
    if tensor.dtype not in _CORE:
        raise ValueError(f"{what}: {tensor.dtype} tensors cannot be communicated")
    address_of(tensor, f"{what}: ")


def check_output(what: str, tensor: Tensor, source: Tensor) -> None:
    """Does the same as `check`. Raises ValueError as well if dtype or device are not those of `source`."""
    check(what, tensor)
    if tensor.dtype != source.dtype:
        raise ValueError(f"{what}: an output of {tensor.dtype} for an input of {source.dtype}")
    require_same_place(what, tensor, source)


def require_same_place(what: str, tensor: Tensor, other: Tensor) -> None:
    if tensor.get_device() != other.get_device():
        raise ValueError(
            f"{what}: a tensor on {tensor.device} beside one on {other.device}; all tensors of a call must be on one "
            "device"
        )


def joined(what: str, tensors: Sequence[Tensor]) -> Tensor:
    """Returns a new flat tensor of the tensors, one after the other."""
    for tensor in tensors:
        require_same_place(what, tensor, tensors[0])
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def adjacent(tensors: Sequence[Tensor]) -> Tensor | None:
    """Returns the flat tensor of which `tensors` are the parts, in this order. None if they are not such views."""
    first = tensors[0]
    storage, end = first.untyped_storage().data_ptr(), first.data_ptr()
    for tensor in tensors:
        if not _is_row_major(tensor) or tensor.dtype != first.dtype or tensor.get_device() != first.get_device():
            return None
        if tensor.data_ptr() != end or tensor.untyped_storage().data_ptr() != storage:
            return None
        end += tensor.numel() * tensor.dtype.itemsize
    count = sum(tensor.numel() for tensor in tensors)
    return first.detach().as_strided((count,), (1,), first.storage_offset())


def own_dtype(tensor: Tensor) -> str:
    """Returns torch's name of the dtype if the core communicates the bits as another dtype, and otherwise ""."""
    dtype: torch.dtype | None = tensor.dtype
    if dtype not in _AS:
        may_be_complex = tensor.dim() > 0 and tensor.shape[-1] == 2  # view_as_real adds such a dimension
        dtype = viewed_complex(tensor) if may_be_complex else None
    return "" if dtype is None else str(dtype).removeprefix("torch.")


def with_own_dtypes(call: str, tensors: Sequence[Tensor]) -> str:
    """Returns the call for ranks to agree on, with all dtypes if the core does not have one of them.

    Otherwise ranks with two dtypes of one width would agree, because the core compares its own dtypes. `tensors` are
    those of the caller: a copy may not say that torch made it of a complex tensor.
    """
    if not any(map(own_dtype, tensors)):
        return call
    found = (own_dtype(tensor) or str(tensor.dtype).removeprefix("torch.") for tensor in tensors)
    return f"{call} of {', '.join(found)}"


def width(dtype: torch.dtype) -> int:
    """Returns the number of the core's elements in one of torch's."""
    return _WIDTH.get(dtype, 1)


def view(tensor: Tensor) -> View:
    """Returns the core's description of a dense tensor, with the number of elements as its shape."""
    dtype, elements, device = tensor.dtype, tensor.numel(), tensor.get_device()
    try:
        address = tensor.data_ptr()
    except RuntimeError:
        address = 0
    if address < NO_OFFSET:
        address = address_of(tensor)
    if elements >= LARGE_ELEMENTS and device < 0:
        register_if_shared(tensor)
    return (address, _CORE[dtype], (elements * _WIDTH.get(dtype, 1),), device)


def host_view(tensor: Tensor) -> View:
    """Does the same as `view` for a tensor that is known to be on the CPU."""
    dtype = tensor.dtype
    return (tensor.data_ptr(), _CORE[dtype], (tensor.numel() * width(dtype),), -1)


def rows(tensor: Tensor, count: int, elements: int) -> View:
    """Does the same as `view`, as `count` rows: ranks may have different numbers of rows, of the same size."""
    dtype = tensor.dtype
    return (tensor.data_ptr(), _CORE[dtype], (count, elements * width(dtype)), tensor.get_device())


def written_directly(outputs: Sequence[Tensor], inputs: Sequence[Tensor], rank: int = -1) -> list[View] | None:
    """Returns the core's descriptions of outputs on a device to which it may write the results; None if it may not.

    Outputs must be row-major. An input must not overlap with its output, unless it is the output's part number `rank`.
    """
    for output, source in zip(outputs, inputs, strict=True):
        if output.get_device() < 0 or not _is_row_major(output):
            return None
        size = source.dtype.itemsize
        start, bytes_in = source.data_ptr() - output.data_ptr(), source.numel() * size
        is_apart = start >= output.numel() * size or start + bytes_in <= 0
        if not is_apart and (rank < 0 or start != rank * bytes_in):
            return None
    return [view(output) for output in outputs]


def sizes_text(sizes: Sequence[int]) -> str:
    """Returns a text of the sizes by rank, for ranks to agree on. A long list is shortened, with a digest."""
    if len(sizes) <= _SHORT_LIST:
        return str(list(sizes))
    digest = hashlib.blake2b(str(list(sizes)).encode(), digest_size=4).hexdigest()
    return f"[{', '.join(map(str, sizes[:_SHORT_LIST]))}, … {len(sizes)} sizes, digest {digest}]"


def from_buffer(buffer: Any, dtype: torch.dtype) -> Tensor:
    """Returns a flat tensor of `dtype` over memory of the core, which lives as long as the tensor.

    The tensor is in host memory if CUDA tensors were copied through host memory.
    """
    if buffer.device >= 0:
        return cuda.flat_over_memory(buffer, dtype)
    if len(buffer) == 0:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(buffer, dtype=dtype)


def device_of(result: Any) -> int:
    """Returns the device of the first tensor in a work's result; -1 for the CPU, and if there is no tensor."""
    while isinstance(result, list | tuple):
        if not result:
            return -1
        result = result[0]
    return int(result.get_device())
