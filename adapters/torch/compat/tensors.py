"""Tensors that torch wraps in a class of its own."""

from __future__ import annotations

import sys
from typing import Any

import torch


def awaited(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the result that an AsyncCollectiveTensor stands for, after waiting for it. Other tensors are returned.

    Relies on: `torch.distributed._functional_collectives.AsyncCollectiveTensor.trigger_wait()`, which returns the
    tensor inside. Functional collectives return such tensors, and so do torch's parallel layers.
    Tried with: all.
    Notices: the class or the method is missing, or a tensor of the class has memory of its own.
    Lost then: collectives of such tensors raise ValueError.
    """
    cls = _loaded("torch.distributed._functional_collectives", "AsyncCollectiveTensor")
    return tensor.trigger_wait() if cls is not None and isinstance(tensor, cls) else tensor


def is_fake(tensor: torch.Tensor) -> bool:
    """Returns whether this is a FakeTensor, which has a shape and a dtype only.

    Relies on: `torch._subclasses.fake_tensor.FakeTensor`.
    Tried with: all.
    Notices: the class is missing, or a tensor of `FakeTensorMode` is of another class.
    Lost then: collectives of such tensors raise ValueError.
    """
    cls = _loaded("torch._subclasses.fake_tensor", "FakeTensor")
    return cls is not None and isinstance(tensor, cls)


def _loaded(module: str, name: str) -> Any:
    """Returns a class of torch, or None: without its module there is no object of the class."""
    return getattr(sys.modules.get(module), name, None)
