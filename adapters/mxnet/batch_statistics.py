"""The part of batch normalization that needs other ranks, as an operator of MXNet in Python.

The operator takes sums over this rank's values of a channel. It returns the slope and shift that normalize the values
by the mean and variance of all ranks. It does not take the values: if they have a layout of oneDNN, MXNet gives
operators in Python a copy in memory that the next operator reuses before Python has read it. A vector has only one
layout.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np

from perseus_like import world
from perseus_like.collectives import Collectives, Sum
from perseus_like.host_memory.host_sets import host_process_set
from perseus_like.process_sets import ProcessSet, global_process_set
from perseus_like.session import session
from perseus_like.tensor import ArrayTensors

from .tensors import memory_of

Array = Any
Numbers = np.ndarray[Any, Any]
HOST, WORLD = 0, 1
OPERATOR = "perseus_batch_statistics"

_arrays: Collectives[Numbers] = Collectives(ArrayTensors())
_USES_AT_ONCE = 16
_uses: dict[str, int] = {}  # the number of the last use of each layer
session.on_start(_uses.clear)
_finding_the_host = threading.Lock()  # operators of several layers run at once


class _BatchStatistics(mx.operator.CustomOp):  # type: ignore[misc]
    """The operator. It keeps no state between forward and backward: the last output is all that backward needs.

    Two uses of one layer never run forward at once, because both write its running statistics. So all ranks number the
    uses in the same order. Backward passes of several uses may run at once; the numbers match them between ranks.
    """

    def __init__(self, eps: float, momentum: float, comm_scope: int, key: str) -> None:
        super().__init__()
        self._eps, self._momentum, self._comm_scope = eps, momentum, comm_scope
        self._key = f"sync_batch_norm.{key}"

    def forward(
        self, is_train: bool, req: Sequence[str], in_data: list[Array], out_data: list[Array], aux: list[Array]
    ) -> None:
        offset, sums, squares, elements, gamma, beta = (memory_of(each).astype(np.float64) for each in in_data)
        statistics = [memory_of(each) for each in aux]
        count, use = 0.0, 0
        if is_train:
            mean, variance, count = self._of_all_ranks(offset, sums, squares, elements[0] / len(sums))
            use = _uses[self._key] = (_uses.get(self._key, -1) + 1) % _USES_AT_ONCE
            for running, new in zip(statistics, (mean, variance), strict=True):
                running[:] = running * self._momentum + new * (1 - self._momentum)
        else:
            mean, variance = (each.astype(np.float64) for each in statistics)
        inverse = 1 / np.sqrt(variance + self._eps)
        slope, distance = gamma * inverse, offset - mean
        kept = np.concatenate([distance, inverse, [count, use]])
        _write(out_data, req, (slope, beta + distance * slope, kept))

    def _of_all_ranks(self, offset: Numbers, sums: Numbers, squares: Numbers, count: float) -> tuple[Any, Any, float]:
        """Returns the mean, the biased variance and the number of values of each channel, over all ranks."""
        mean = offset + sums / count
        around_zero = squares / count - (sums / count) ** 2 + mean * mean
        total = self._sum(np.concatenate([[1], mean, around_zero]) * count, "forward")
        mean, around_zero = np.split(total[1:] / total[0], 2)
        return mean, np.maximum(around_zero - mean * mean, 0), float(total[0])

    def backward(
        self,
        req: Sequence[str],
        out_grad: list[Array],
        in_data: list[Array],
        out_data: list[Array],
        in_grad: list[Array],
        aux: list[Array],
    ) -> None:
        by_slope, by_shift = (memory_of(each).astype(np.float64) for each in out_grad[:2])
        gamma = memory_of(in_data[4]).astype(np.float64)
        kept = memory_of(out_data[2])
        distance, inverse = np.split(kept[:-2], 2)
        count, use = kept[-2:]
        by_slope += by_shift * distance
        by_sums = by_squares = np.zeros_like(by_slope)
        if count:
            by_mean, by_variance = -by_shift * gamma * inverse, -0.5 * by_slope * gamma * inverse**3
            total = self._sum(np.concatenate([by_mean, by_variance]), f"backward.{int(use)}") / count
            by_mean, by_squares = np.split(total, 2)
            by_sums = by_mean + 2 * distance * by_squares
        # The gradients of gamma and beta are this rank's own. The trainer reduces them with all other gradients.
        _write(in_grad, req, (0, by_sums, by_squares, 0, by_slope * inverse, by_shift))

    def _sum(self, mine: Numbers, what: str) -> Numbers:
        ranks = self._ranks()
        if ranks.size() == 1:
            return mine
        return _arrays.allreduce(mine, Sum, f"{self._key}.{what}", process_set=ranks).result()

    def _ranks(self) -> ProcessSet:
        world.size()  # raises without a session
        if self._comm_scope == WORLD:
            return global_process_set
        with _finding_the_host:
            return host_process_set()


def _write(arrays: list[Array], requests: Sequence[str], made: Sequence[Any]) -> None:
    """Does what MXNet's `assign` does, in memory that only this operator uses while it runs.

    `assign` itself would push an operation to MXNet's engine for each array and wait for it, which took most of the
    time of a training on a busy machine.
    """
    for array, request, values in zip(arrays, requests, made, strict=True):
        if request == "add":
            memory_of(array)[:] += values
        elif request != "null":
            memory_of(array)[:] = values


@mx.operator.register(OPERATOR)
class _BatchStatisticsProperties(mx.operator.CustomOpProp):  # type: ignore[misc]
    """The description of the operator. MXNet passes options as text."""

    def __init__(self, eps: str, momentum: str, comm_scope: str, key: str) -> None:
        super().__init__(need_top_grad=True)
        self._options = (float(eps), float(momentum), checked_scope(int(comm_scope)), key)

    def list_arguments(self) -> list[str]:
        """Returns the inputs: `sums` and `squares` are of the values minus `offset`; `elements` counts all channels."""
        return ["offset", "sums", "squares", "elements", "gamma", "beta"]

    def list_outputs(self) -> list[str]:
        """Returns the outputs: the normalized values are (values - offset) * slope + shift."""
        return ["slope", "shift", "kept"]

    def list_auxiliary_states(self) -> list[str]:
        return ["moving_mean", "moving_var"]

    def infer_shape(self, in_shape: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        channels = in_shape[1]
        return (
            [channels, channels, channels, [1], channels, channels],
            [channels, channels, [2 * channels[0] + 2]],
            [
                channels,
                channels,
            ],
        )

    def infer_type(self, in_type: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        dtype = in_type[1]
        if dtype == np.float16:
            raise ValueError(
                "PerseusSyncBatchNorm cannot sum float16 data, and does not know that its data is float16; call "
                "net.cast('float16'), or pass mx.sym.Cast(data, dtype='float16') to the symbol"
            )
        return [dtype, dtype, dtype, np.int64, dtype, dtype], [dtype, dtype, np.float64], [dtype, dtype]

    def create_operator(self, ctx: Any, in_shapes: Any, in_dtypes: Any) -> _BatchStatistics:
        return _BatchStatistics(*self._options)


def checked_scope(comm_scope: int) -> int:
    if comm_scope not in (HOST, WORLD):
        raise ValueError(f"PerseusSyncBatchNorm: comm_scope is {comm_scope!r}; pass 0 for this host or 1 for all ranks")
    return comm_scope
