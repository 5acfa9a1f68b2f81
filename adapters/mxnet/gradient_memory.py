"""The memory of the gradients of gluon parameters: one block per bucket, in the arena if it has room."""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mxnet.gluon.parameter import DeferredInitializationError

from perseus_like.gradients.buckets import Bucket

from .compat.parameters import after_initialization, has_new_gradient, replace_gradient
from .memory import Memory
from .tensors import checked, is_numpy

Array = Any
Parameter = Any  # mxnet.gluon.Parameter

_log = logging.getLogger("perseus_like")

# Gradients that have been moved to a block, by parameter.
_in_blocks: weakref.WeakKeyDictionary[Parameter, Array] = weakref.WeakKeyDictionary()


def gradient_of(parameter: Parameter) -> Array:
    """Returns the gradient. Raises ValueError if there are several, or if it cannot be communicated."""
    gradients = parameter.list_grad()
    if len(gradients) > 1:
        raise ValueError(
            f"{parameter.name!r} has gradients on {len(gradients)} devices, but a rank uses one device; start one rank "
            "for each device"
        )
    return checked(gradients[0])


def when_initialized(parameters: Sequence[Parameter], do: Callable[[], None]) -> None:
    """Calls `do` when all parameters have shapes and gradients: now, or after the first batch."""
    deferred = [parameter for parameter in parameters if not _is_initialized(parameter)]
    left = len(deferred)
    if not left:
        do()

    def count() -> None:
        nonlocal left
        left -= 1
        if not left:
            do()

    for parameter in deferred:
        after_initialization(parameter, count)


def _is_initialized(parameter: Parameter) -> bool:
    try:
        parameter.list_data()
    except (DeferredInitializationError, RuntimeError):
        return False
    return True


class GradientMemory:
    """Moves gradients to shared memory. For MXNet's engine they are ordinary arrays.

    A gluon block that was hybridized with `static_shape=True` always writes into the arrays of its first backward pass.
    Gradients are therefore moved before the first backward pass, and moved back if the old array was written.
    """

    def __init__(self) -> None:
        self._moved: list[tuple[Parameter, Array]] = []  # until the first reduction: the old arrays

    def move(self, parameters: Sequence[Parameter], bucket: Bucket[str]) -> None:
        """Moves the gradients of a bucket to one block of memory, if they are all zero."""
        gradients = [gradient_of(parameter) for parameter in parameters]
        if np.dtype(bucket.kind).kind != "f" or not all(map(_may_move, parameters, gradients)):
            return
        element_bytes = np.dtype(gradients[0].dtype).itemsize
        memory = Memory(bucket.elements * element_bytes)
        if memory.why_private:
            _log.warning("gradients stay in private memory, where reducing is slower: %s", memory.why_private)
            return
        for parameter, gradient, offset in zip(parameters, gradients, bucket.offsets, strict=True):
            view = memory.view((offset - bucket.start) * element_bytes, gradient.shape, bucket.kind)
            view = view.as_np_ndarray() if is_numpy(gradient) else view
            replace_gradient(parameter, view)
            _in_blocks[parameter] = view
            if parameter.grad_req == "write":
                gradient[:] = math.nan
            self._moved.append((parameter, gradient))

    def check(self) -> None:
        """Moves gradients back whose old arrays were written. Must be called after a backward pass."""
        moved, self._moved = self._moved, []
        back = [(parameter, gradient) for parameter, gradient in moved if _was_written(parameter, gradient)]
        for parameter, gradient in back:
            if gradient_of(parameter) is _in_blocks.get(parameter):
                replace_gradient(parameter, gradient)
        if back:
            _log.warning(
                "the gradients of %d parameters stay in private memory, where reducing is slower: a block hybridized "
                "with static_shape=True computed gradients before its DistributedTrainer was made; make the trainer "
                "before the first backward pass",
                len(back),
            )


def _was_written(parameter: Parameter, old: Array) -> bool:
    """Returns whether an old array has been written: it held zeros if gradients are added to it, otherwise NaN."""
    content = old.asnumpy()
    return bool(content.any() if parameter.grad_req == "add" else not np.isnan(content).all())


def _may_move(parameter: Parameter, gradient: Array) -> bool:
    return (
        gradient is not _in_blocks.get(parameter) and not has_new_gradient(parameter) and not gradient.asnumpy().any()
    )
