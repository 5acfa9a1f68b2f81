"""Submits random sequences of verbs, shapes and dtypes in different orders on each rank, and waits in other orders."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import perseus_like.numpy as hvd

from ..reference import DTYPES, assert_close, reduced, rows_of, values


@dataclass(frozen=True)
class RandomRequest:
    verb: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    op: str
    seed: int
    root: int
    members: int

    def inputs(self, size: int) -> list[list[np.ndarray[Any, Any]]]:
        """Returns a list for each tensor of the group, with the inputs of all ranks."""
        uneven = self.verb == "allgather"
        shapes = [(self.shape[0] + (r if uneven else 0), *self.shape[1:]) for r in range(size)]
        return [
            [values(r, shapes[r], self.dtype, 100 * self.seed + member) for r in range(size)]
            for member in range(self.members)
        ]


requests = st.builds(
    RandomRequest,
    verb=st.sampled_from(["allreduce", "allreduce", "broadcast", "allgather", "alltoall", "reducescatter"]),
    shape=st.sampled_from([(12,), (24, 3), (12, 1, 2), (1200,), (36, 100)]),
    dtype=st.sampled_from(DTYPES),
    op=st.sampled_from(["Sum", "Average"]),
    seed=st.integers(0, 1000),
    root=st.integers(0, 3),
    members=st.integers(1, 3),
)


def start(request: RandomRequest, name: str, rank: int, size: int) -> int:
    inputs = [member[rank] for member in request.inputs(size)]
    if request.verb == "allreduce":
        return hvd.grouped_allreduce_async(inputs, op=getattr(hvd, request.op), name=name)
    if request.verb == "reducescatter":
        return hvd.grouped_reducescatter_async(inputs, op=getattr(hvd, request.op), name=name)
    if request.verb == "allgather":
        return hvd.grouped_allgather_async(inputs, name=name)
    if request.verb == "broadcast":
        return hvd.broadcast_async(inputs[0], request.root % size, name=name)
    return hvd.alltoall_async(inputs[0], name=name)


def check(request: RandomRequest, result: Any, rank: int, size: int) -> None:
    inputs = request.inputs(size)
    if request.verb == "broadcast":
        np.testing.assert_array_equal(result, inputs[0][request.root % size])
    elif request.verb == "alltoall":
        np.testing.assert_array_equal(result[0], np.concatenate([np.split(array, size)[rank] for array in inputs[0]]))
    elif request.verb == "allgather":
        for got, arrays in zip(result, inputs, strict=True):
            np.testing.assert_array_equal(got, np.concatenate(arrays))
    else:
        mine = rows_of(rank, size, request.shape[0]) if request.verb == "reducescatter" else slice(None)
        for got, arrays in zip(result, inputs, strict=True):
            assert_close(got, reduced(arrays, request.op)[mine], request.dtype, roundings=4)


# Every rank must draw the same examples, so there is no database, no shrinking, and a fixed seed.
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(sequence=st.lists(requests, min_size=1, max_size=25), shuffle=st.integers(0, 1 << 30))
def test_any_order_on_any_rank(sequence: list[RandomRequest], shuffle: int) -> None:
    rank, size = hvd.rank(), hvd.size()
    mixer = random.Random(shuffle + rank)
    order = list(range(len(sequence)))
    mixer.shuffle(order)
    handles = {place: start(sequence[place], f"request{place}", rank, size) for place in order}
    mixer.shuffle(order)
    for place in order:
        check(sequence[place], hvd.synchronize(handles[place]), rank, size)


def test_many_small_allreduces_at_once() -> None:
    size = hvd.size()
    for burst in range(5):
        handles = [hvd.allreduce_async(np.full(n % 17 + 1, float(n)), op=hvd.Sum, name=f"{n}") for n in range(300)]
        for n, handle in enumerate(handles):
            np.testing.assert_array_equal(hvd.synchronize(handle), np.full(n % 17 + 1, float(n * size)), str(burst))
