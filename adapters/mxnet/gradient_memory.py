"""The memory that gradients of gluon parameters share: a bucket each, in the arena where there is room."""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.gluon.parameter import DeferredInitializationError

from perseus_like.gradients import Bucket

from .memory import Memory
from .tensors import checked, is_numpy

Array = Any
Parameter = Any  # mxnet.gluon.Parameter

_log = logging.getLogger("perseus_like")

# Gradients that were placed, by parameter.
_placed: weakref.WeakKeyDictionary[Parameter, Array] = weakref.WeakKeyDictionary()


def gradient_of(parameter: Parameter) -> Array:
    """Its gradient. ValueError where it has several, or one that cannot be communicated."""
    gradients = parameter.list_grad()
    if len(gradients) > 1:
        raise ValueError(
            f"{parameter.name!r} has gradients on {len(gradients)} devices; a process drives one: start as many ranks "
            "as there are devices"
        )
    return checked(gradients[0])


def when_initialized(parameters: Sequence[Parameter], do: Callable[[], None]) -> None:
    """Calls `do` when all of them have shapes and gradients: now, or when the first batch has made the last known."""
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


def after_initialization(parameter: Parameter, do: Callable[[], object]) -> None:
    """Calls `do` once, when a parameter whose shape is not known yet has been given its values."""
    initialize = parameter._init_impl

    def initialize_and_do(*arguments: Any) -> None:
        parameter.__dict__.pop("_init_impl", None)  # the method of the class comes to light again
        initialize(*arguments)
        do()

    parameter._init_impl = initialize_and_do


def _is_initialized(parameter: Parameter) -> bool:
    try:
        parameter.list_data()
    except (DeferredInitializationError, RuntimeError):
        return False
    return True


class GradientMemory:
    """Puts gradients into shared memory, of which the engine knows nothing: they are arrays like others.

    A block that was hybridized with `static_shape=True` writes for ever into the arrays that it found at its first
    backward pass. So gradients are moved before there are any, and back if one was written where it had been.
    """

    def __init__(self) -> None:
        self._moved: list[tuple[Parameter, Array]] = []  # until the first reduction: where each was

    def place(self, parameters: Sequence[Parameter], bucket: Bucket[str]) -> None:
        """Moves the gradients of a bucket next to one another, if they are all zero."""
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
            _put(parameter, view)
            _placed[parameter] = view
            if parameter.grad_req == "write":
                gradient[:] = math.nan
            self._moved.append((parameter, gradient))

    def check(self) -> None:
        """After a backward pass: puts gradients back that were written where they had been."""
        moved, self._moved = self._moved, []
        back = [(parameter, gradient) for parameter, gradient in moved if _was_written(parameter, gradient)]
        for parameter, gradient in back:
            if gradient_of(parameter) is _placed.get(parameter):
                _put(parameter, gradient)
        if back:
            _log.warning(
                "the gradients of %d parameters stay in private memory, where reducing is slower: a block hybridized "
                "with static_shape=True had computed gradients before its DistributedTrainer was made",
                len(back),
            )


def _was_written(parameter: Parameter, left: Array) -> bool:
    """Whether an array has been written to since it was left: what is added to is still zero, all else no number."""
    content = left.asnumpy()
    return bool(content.any() if parameter.grad_req == "add" else not np.isnan(content).all())


def _may_move(parameter: Parameter, gradient: Array) -> bool:
    (data,) = parameter.list_data()
    return gradient is not _placed.get(parameter) and not data._fresh_grad and not gradient.asnumpy().any()


def _put(parameter: Parameter, gradient: Array) -> None:
    """From now on autograd writes this parameter's gradient there."""
    (data,) = parameter.list_data()
    fresh = data._fresh_grad
    parameter._grad = [gradient]
    mx.autograd.mark_variables([data], parameter._grad, parameter.grad_req)
    data._fresh_grad = fresh
