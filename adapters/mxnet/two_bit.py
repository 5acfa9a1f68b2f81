"""Gradients as one of three values, -threshold, 0 and threshold; what that leaves out is added to the next gradient.

MXNet's 2-bit compression. Codes travel as 8-bit integers, which the ranks can add: a quarter of float32's bytes.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import mxnet as mx

from perseus_like import basics
from perseus_like.collectives import Sum
from perseus_like.process_sets import global_process_set

from .ops import reduce

Array = Any
_LARGEST_INT8 = 127


class TwoBit:
    """Remembers, by key, what was left out."""

    def __init__(self, threshold: float) -> None:
        if threshold <= 0:
            raise ValueError(f"the threshold of 2-bit compression is {threshold}, but has to be positive")
        self._threshold = threshold
        self._left: dict[Hashable, Array] = {}

    def reduce(
        self, key: Hashable, gradient: Array, target: Array, name: str, priority: int, also_written: list[Array]
    ) -> None:
        """Has the engine sum the codes of all ranks' gradients into `target`."""
        codes = self.encode(key, gradient).astype("int8" if basics.size() <= _LARGEST_INT8 else "int32")
        rest = (1.0, 1.0, global_process_set, priority, None, also_written)
        reduce("allreduce", [codes], [codes], Sum, name, *rest)
        target[:] = codes.astype(target.dtype) * self._threshold

    def encode(self, key: Hashable, gradient: Array) -> Array:
        """-1, 0 or 1 for each element."""
        left = self._left.get(key)
        if left is None or left.shape != gradient.shape:
            left = self._left[key] = mx.nd.zeros(gradient.shape, dtype=gradient.dtype)
        left += gradient
        codes = (left >= self._threshold) - (left <= -self._threshold)
        left -= codes * self._threshold
        return codes
