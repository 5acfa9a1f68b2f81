"""Tensors that torch wraps in a class of its own."""

from __future__ import annotations

import sys
from typing import Any

import torch


def awaited(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the result that an AsyncCollectiveTensor stands for, after waiting for it. Other tensors are returned.

    Relies on: `trigger_wait()` and `elem`, the tensor inside, of
    `torch.distributed._functional_collectives.AsyncCollectiveTensor`. Functional collectives return such tensors, and
    so do torch's parallel layers.
    Tried with: all.
    Notices: the class or the method is missing, or a tensor of the class has memory of its own.
    Lost then: collectives of such tensors raise ValueError.
    """
    cls = _loaded("torch.distributed._functional_collectives", "AsyncCollectiveTensor")
    if cls is None or not isinstance(tensor, cls):
        return tensor
    waiting: Any = tensor
    waiting.trigger_wait()  # torch 2.1's returns the wrapper
    return waiting.elem  # type: ignore[no-any-return]


def is_fake(tensor: torch.Tensor) -> bool:
    """Returns whether this is a FakeTensor, which has a shape and a dtype only.

    Relies on: `torch._subclasses.fake_tensor.FakeTensor`.
    Tried with: all.
    Notices: the class is missing, or a tensor of `FakeTensorMode` is of another class.
    Lost then: collectives of such tensors raise ValueError.
    """
    cls = _loaded("torch._subclasses.fake_tensor", "FakeTensor")
    return cls is not None and isinstance(tensor, cls)


def viewed_complex(tensor: torch.Tensor) -> torch.dtype | None:
    """Returns the dtype of the complex tensor if this is `torch.view_as_real` of one, and otherwise None.

    Relies on: `Tensor._base`, the tensor that a view is of. torch's functions give a process group complex tensors as
    real ones.
    Tried with: all.
    Notices: the attribute is missing, or is another tensor.
    Lost then: a complex tensor on one rank beside a real one on another gives a wrong sum in place of an error.
    """
    base = tensor._base
    if base is None or not base.is_complex() or not tensor.is_floating_point():
        return None
    return base.dtype if tensor.dim() > 0 and tensor.shape[-1] == 2 and tensor.stride(-1) == 1 else None


def _loaded(module: str, name: str) -> Any:
    """Returns a class of torch, or None: without its module there is no object of the class."""
    return getattr(sys.modules.get(module), name, None)
