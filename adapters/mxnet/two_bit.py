"""MXNet's 2-bit compression: each element of a gradient becomes -threshold, 0 or threshold.

The difference is added to the next gradient. The ranks add the codes as 8-bit integers, a quarter of float32's bytes.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import mxnet as mx

from perseus_like import world
from perseus_like.collectives import Sum
from perseus_like.process_sets import global_process_set

from .reductions import reduce

Array = Any
_LARGEST_INT8 = 127


class TwoBit:
    """The differences between gradients and their codes, by key."""

    def __init__(self, threshold: float) -> None:
        if threshold <= 0:
            raise ValueError(f"2-bit compression: the threshold is {threshold}; pass a positive number")
        self._threshold = threshold
        self._differences: dict[Hashable, Array] = {}

    def reduce(
        self, key: Hashable, gradient: Array, target: Array, name: str, priority: int, also_written: list[Array]
    ) -> None:
        """Sums the codes of all ranks' gradients into `target`, in MXNet's engine."""
        codes = self.encode(key, gradient).astype("int8" if world.size() <= _LARGEST_INT8 else "int32")
        rest = (1.0, 1.0, global_process_set, priority, None, also_written)
        reduce("allreduce", [codes], [codes], Sum, name, *rest)
        target[:] = codes.astype(target.dtype) * self._threshold

    def encode(self, key: Hashable, gradient: Array) -> Array:
        """Returns -1, 0 or 1 for each element."""
        difference = self._differences.get(key)
        if difference is None or difference.shape != gradient.shape:
            difference = self._differences[key] = mx.nd.zeros(gradient.shape, dtype=gradient.dtype)
        difference += gradient
        codes = (difference >= self._threshold) - (difference <= -self._threshold)
        difference -= codes * self._threshold
        return codes
