"""The memory of tensors. Some tensors have none: wrappers of other tensors, and tensors whose storage was freed."""

from __future__ import annotations

import torch

_REMEDIES = {"DTensor": "pass tensor.to_local(), or tensor.full_tensor() for the whole"}


def address_of(tensor: torch.Tensor, what: str = "") -> int:
    """Returns the address of a tensor's elements. ValueError, which begins with `what`, if there is no memory."""
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # torch.func wraps tensors in objects without a storage
        raise _without_memory(tensor, what) from None
    if address == 0 and tensor.numel() > 0:
        raise _without_memory(tensor, what)
    return int(address)


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
