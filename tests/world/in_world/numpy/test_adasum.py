"""Compares Adasum with NumPy, at any number of ranks: which vectors are combined, and with which precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import perseus_like.numpy as hvd

from ..reference import FLOATS, adasum, assert_close, values

SHAPES = [(), (1,), (7,), (13, 5), (300_001,), (0,)]


def inputs_of(size: int, shape: tuple[int, ...], dtype: Any, seed: int = 0) -> list[Any]:
    return [values(rank, shape, np.dtype(dtype), seed) for rank in range(size)]


def assert_same_bits(array: Any) -> None:
    everybody = hvd.allgather(np.frombuffer(array.tobytes(), np.uint8)[None])
    assert (everybody == everybody[0]).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_allreduce(dtype: Any, shape: tuple[int, ...], rank: int, size: int) -> None:
    inputs = inputs_of(size, shape, dtype)
    result = hvd.allreduce(inputs[rank], op=hvd.Adasum, name="x")
    assert_close(result, adasum(inputs), np.dtype(dtype), roundings=4)
    assert_same_bits(result)


def test_each_tensor_is_a_separate_vector(rank: int, size: int) -> None:
    """The tensors are executed together: a group, fused small tensors, and large tensors among them."""
    kinds = [
        ((3,), np.float32),
        ((1000,), np.float32),
        ((40_000,), np.float32),
        ((5, 5), np.float16),
        ((9,), np.float64),
    ]
    tensors = [inputs_of(size, shape, dtype, seed) for seed, (shape, dtype) in enumerate(kinds)]
    group = hvd.grouped_allreduce([tensor[rank] for tensor in tensors], op=hvd.Adasum, name="group")
    handles = [hvd.allreduce_async(tensor[rank], op=hvd.Adasum, name=f"x{i}") for i, tensor in enumerate(tensors)]
    for tensor, in_group, handle in zip(tensors, group, handles, strict=True):
        assert_close(in_group, adasum(tensor), roundings=4)
        assert_close(hvd.synchronize(handle), adasum(tensor), roundings=4)


def test_orthogonal_vectors_are_added_and_parallel_ones_averaged(rank: int, size: int) -> None:
    orthogonal = np.zeros(size, np.float32)
    orthogonal[rank] = rank + 1
    assert hvd.allreduce(orthogonal, op=hvd.Adasum).tolist() == list(range(1, size + 1))
    same = np.array([3.0, -1e-30, 2e30], np.float64)
    np.testing.assert_allclose(hvd.allreduce(same, op=hvd.Adasum), same, rtol=1e-14)


def test_zeros_do_not_change_the_result(rank: int, size: int) -> None:
    tiny = np.full(5, 1e-20 if rank == size - 1 else 0.0)
    np.testing.assert_array_equal(hvd.allreduce(tiny, op=hvd.Adasum), np.full(5, 1e-20))


def test_float16_neither_overflows_nor_underflows(rank: int, size: int) -> None:
    """The square of each of these values is outside float16's range."""
    for scale in (6e4, 1e-4):
        inputs = [
            (values(r, (1000,), np.dtype(np.float64)).clip(-1, 1) * scale / size).astype(np.float16)
            for r in range(size)
        ]
        result = hvd.allreduce(inputs[rank], op=hvd.Adasum)
        expected = adasum(inputs)
        assert np.abs(result - expected).max() <= 2e-3 * np.abs(expected).max()


def test_factors_and_compression(rank: int, size: int) -> None:
    inputs = inputs_of(size, (500,), np.float32)
    result = hvd.allreduce(inputs[rank], op=hvd.Adasum, prescale_factor=0.5, postscale_factor=3.0)
    assert_close(result, 1.5 * adasum(inputs), np.dtype(np.float32), roundings=6)
    small = hvd.allreduce(inputs[rank], op=hvd.Adasum, compression=hvd.Compression.fp16)
    assert_close(small, adasum(inputs), np.dtype(np.float32), roundings=4000)
    assert_same_bits(small)


def test_in_a_process_set(rank: int, size: int) -> None:
    if size < 3:
        pytest.skip("a subset of two ranks has one rank")
    ranks = list(range(1, size))
    part = hvd.add_process_set(ranks)
    if rank in ranks:
        inputs = inputs_of(size, (77,), np.float32)
        result = hvd.allreduce(inputs[rank], op=hvd.Adasum, process_set=part)
        assert_close(result, adasum(inputs[1:]), roundings=4)
    hvd.remove_process_set(part)


def test_joined_ranks_count_as_zeros(rank: int, size: int) -> None:
    inputs = inputs_of(size, (50,), np.float64)
    if rank < size - 1 or size == 1:
        expected = adasum([*inputs[:-1], np.zeros(50)]) if size > 1 else inputs[0]
        assert_close(hvd.allreduce(inputs[rank], op=hvd.Adasum, name="with a joined rank"), expected)
    hvd.join()


def test_wrong_types_and_operations_are_errors(rank: int, size: int) -> None:
    with pytest.raises(ValueError, match="Adasum is for floating types"):
        hvd.allreduce(np.ones(3, np.int32), op=hvd.Adasum)
    if size > 1:
        with pytest.raises(hvd.HorovodInternalError, match=r"allreduce.*adasum"):
            hvd.allreduce(np.ones(3), op=hvd.Adasum if rank else hvd.Sum, name="mixed")
