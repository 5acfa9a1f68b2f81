"""Allocates the memory that gradients of one dtype and device share: in the arena if there is room."""

from __future__ import annotations

import torch

from perseus_like.collectives.arguments import member_id
from perseus_like.errors import UnavailableError
from perseus_like.gradients.buckets import LARGE_BYTES, Member
from perseus_like.process_sets import ProcessSet
from perseus_like.session import session

from ..compat.dynamo import is_compiling
from ..tensors import empty, tensors
from ..tensors.shared_memory import warn_once

Kind = tuple[torch.dtype, torch.device]


def member_of(parameter: torch.Tensor) -> Member[Kind]:
    kind = (parameter.dtype, parameter.device)
    return Member(parameter.numel(), parameter.element_size(), kind, fills_bucket=parameter.device.type != "cpu")


def dense_strides(parameter: torch.Tensor) -> tuple[int, ...]:
    """Returns the parameter's strides if they leave no gaps, and otherwise the nearest strides without gaps."""
    return torch.empty_like(parameter, device="meta").stride()


def allocate(elements: int, kind: Kind) -> torch.Tensor:
    """Returns zeros in the arena, or in private memory with one warning if the arena has no room."""
    dtype, device = kind
    if device.type != "cpu":
        return torch.zeros(elements, dtype=dtype, device=device)
    try:
        return empty(elements, dtype=dtype)
    except UnavailableError as error:
        megabytes = elements * dtype.itemsize / 1e6
        warn_once(f"{megabytes:.0f} MB of gradients are kept in private memory, where reducing is slower: {error}")
        return torch.zeros(elements, dtype=dtype)


def has_layout_of(gradient: torch.Tensor, place: torch.Tensor) -> bool:
    """Returns whether the bytes of the gradient are those that `place` would have after copying it there."""
    return (
        gradient.layout is torch.strided
        and gradient.dtype == place.dtype
        and gradient.stride() == place.stride()
        and not gradient.is_neg()
    )


def is_at(gradient: torch.Tensor, place: torch.Tensor) -> bool:
    """Returns whether the gradient has the memory of `place`, and reads it in the same way."""
    return gradient.layout is torch.strided and gradient.dtype is place.dtype and gradient.is_set_to(place)


def fill(place: torch.Tensor, gradient: torch.Tensor) -> None:
    """Copies a gradient into its bucket. A large one bypasses the caches, which it would leave before the reduction."""
    # Compiled autograd traces hooks, too.
    if place.nbytes >= LARGE_BYTES and not is_compiling() and has_layout_of(gradient, place):
        target, source = tensors.view(place), tensors.view(gradient)
        if target[3] < 0 and source[3] < 0:
            session.core.copy_past_caches(target, source)
            torch.autograd.graph.increment_version(place)
            return
    place.copy_(gradient)


def register(memory: torch.Tensor, process_set: ProcessSet) -> object:
    """Registers a bucket on a GPU with NCCL, if it is asked for, until the result is released.

    Release the result before the memory.
    """
    view = tensors.view(memory)
    return None if view[3] < 0 else session.core.register_memory(view, member_id(process_set))
