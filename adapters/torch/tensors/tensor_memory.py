"""The memory of tensors. Some tensors have none: wrappers of other tensors, and tensors whose storage was freed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

# Without a storage, the address is the offset in the storage. No offset reaches 1 TiB, and most addresses are above it.
NO_OFFSET = 1 << 40
_REMEDIES = {"DTensor": "pass tensor.to_local(), or tensor.full_tensor() for the whole"}


def address_of(tensor: torch.Tensor, what: str = "") -> int:
    """Returns the address of a tensor's elements. ValueError, which begins with `what`, if there is no memory."""
    try:
        address: int = tensor.data_ptr()
        if address >= NO_OFFSET:
            return address
        offset = tensor.storage_offset() * tensor.element_size()
    except RuntimeError:  # torch.func wraps tensors in objects without a storage
        raise _without_memory(tensor, what) from None
    if address == offset and tensor.numel() > 0:  # the address of the storage is null
        raise _without_memory(tensor, what)
    return address


def _without_memory(tensor: torch.Tensor, what: str) -> ValueError:
    name = type(tensor).__name__
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        remedy = _REMEDIES.get(name, "pass the tensor that it wraps")
        return ValueError(f"{what}a tensor of the class {name} has no memory of its own to communicate; {remedy}")
    if _is_freed(tensor):
        return ValueError(
            f"{what}the storage of a {name} of {tensor.numel()} elements was freed: it has 0 bytes; resize the storage "
            "and fill the tensor before the call"
        )
    # Their class in Python is Tensor, and their texts begin with the name of the wrapper.
    kind = repr(tensor).partition("(")[0]
    return ValueError(
        f"{what}a {kind} of torch.func (functorch) has no memory of its own to communicate; call the collective "
        "outside of grad, vmap, jvp and functionalize"
    )


def _is_freed(tensor: torch.Tensor) -> bool:
    try:
        return tensor.untyped_storage().nbytes() == 0
    except (RuntimeError, NotImplementedError):
        return False


def writing(result: Any, is_inference: bool = False) -> AbstractContextManager[Any]:
    """Returns the context in which the tensors of `result`, a tensor or nested lists, may be written.

    torch refuses to write tensors of its inference mode outside of that mode. `is_inference`: others are such tensors.
    """
    if is_inference or any(tensor.is_inference() for tensor in _tensors_in(result)):
        return torch.inference_mode()
    return torch.no_grad()


def _tensors_in(result: Any) -> Iterator[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, list | tuple):
        for each in result:
            yield from _tensors_in(each)


def write(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copies `source` to `target`. All elements of an expanded dimension (stride 0) are one element in memory.

    Raises ValueError if such elements would have different values.
    """
    if 0 in target.stride():
        for dimension, (length, stride) in enumerate(zip(target.shape, target.stride(), strict=True)):
            if stride == 0 and length > 1:
                first = source.narrow(dimension, 0, 1)
                if not torch.equal(_bytes_of(source), _bytes_of(first.expand_as(source))):
                    raise ValueError(
                        f"the result has different values along dimension {dimension} of a tensor of shape "
                        f"{tuple(target.shape)}, in which that dimension is expanded: its elements are one element in "
                        "memory; pass a clone() of the tensor"
                    )
                target, source = target.narrow(dimension, 0, 1), first
    target.copy_(source)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
