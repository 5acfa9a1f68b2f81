"""torch's classes for training: optimizers, learning-rate schedules and batch normalization."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, TypeGuard, TypeVar

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

BatchNormBase = _BatchNorm
F = TypeVar("F", bound=Callable[..., Any])


def mark_stepped(optimizer: Any) -> None:
    """Makes the learning-rate schedules of `optimizer` count a step that another object has made for it.

    Relies on: schedules reading `Optimizer._opt_called`, or `Optimizer._step_count`, as those of torch 2.1.
    Tried with: all.
    Notices: a schedule warns although the step was marked.
    Lost then: a schedule warns that it was called before the optimizer.
    """
    optimizer._opt_called = True
    if hasattr(optimizer, "_step_count"):
        optimizer._step_count += 1


def without_hooks(step: F) -> F:
    """Decorates a method `step` that calls another `step`, so that torch runs the hooks of the other one alone.

    Relies on: the attribute `hooked`, by which `Optimizer` marks a `step` that it has replaced by one with hooks.
    Tried with: all.
    Notices: a hook runs more than once in a step.
    Lost then: hooks of steps run twice.
    """
    step.hooked = True  # type: ignore[attr-defined]
    return step


def existing_wrappers() -> list[DistributedDataParallel]:
    """Returns all of torch's DistributedDataParallels in this process, which torch has no list of.

    Relies on: Python's garbage collector tracking modules.
    Tried with: 2.13.
    Notices: the collector does not track a module.
    Lost then: on several hosts, a sharded optimizer of a wrapped model reduces gradients that torch reduces too.
    """
    return [each for each in gc.get_objects() if issubclass(type(each), DistributedDataParallel)]


def is_batch_norm(module: torch.nn.Module) -> TypeGuard[BatchNormBase]:
    """Returns True for a module of batch normalization, for any number of dimensions.

    Relies on: the class `torch.nn.modules.batchnorm._BatchNorm`, its constructor, its parameters and buffers, and its
    method `_check_input_dim`.
    Tried with: all.
    Notices: the class is missing, or BatchNorm1d, 2d or 3d is not derived from it.
    Lost then: `import perseus_like.torch` fails with Python's ImportError, or modules are not converted.
    """
    return isinstance(module, BatchNormBase)
