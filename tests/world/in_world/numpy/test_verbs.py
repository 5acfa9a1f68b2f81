"""Compares each verb with NumPy in float64, over dtypes, shapes and factors."""

from __future__ import annotations

import os
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perseus_like.numpy as hvd

from ..reference import DTYPES, assert_close, is_float, reduced, rows_of, values

SHAPES = [(), (0,), (1,), (7,), (3, 5), (2, 0, 4), (1023, 3)]
OPS = ["Average", "Sum", "Min", "Max", "Product"]
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)


@dtypes
@pytest.mark.parametrize("op", OPS)
def test_allreduce(dtype: np.dtype[Any], op: str, rank: int, size: int) -> None:
    for shape in SHAPES:
        inputs = [values(r, shape, dtype) for r in range(size)]
        if op == "Product" and not is_float(dtype):
            inputs = [np.sign(array) for array in inputs]
        mine = inputs[rank].copy()
        result = hvd.allreduce(mine, op=getattr(hvd, op))
        assert_close(result, reduced(inputs, op), dtype, roundings=4)
        np.testing.assert_array_equal(mine, inputs[rank])


@dtypes
def test_allreduce_is_bit_identical_on_all_ranks(dtype: np.dtype[Any], rank: int, size: int) -> None:
    result = hvd.allreduce(values(rank, (1009,), dtype), op=hvd.Sum)
    for other in hvd.allgather_object(result.tobytes()):
        assert other == result.tobytes()


@dtypes
@pytest.mark.parametrize("op", ["Average", "Sum"])
@pytest.mark.parametrize(("prescale", "postscale"), [(0.5, 1.0), (1.0, 0.25), (2.0, 3.0)])
def test_factors(dtype: np.dtype[Any], op: str, prescale: float, postscale: float, rank: int, size: int) -> None:
    inputs = [values(r, (33,), dtype) for r in range(size)]
    if dtype.kind == "u":
        inputs = [array // 2 for array in inputs]
    result = hvd.allreduce(inputs[rank], op=getattr(hvd, op), prescale_factor=prescale, postscale_factor=postscale)
    if dtype.name in ("uint8", "int8") and np.abs(reduced(inputs, op, prescale, postscale)).max() > 120:
        return
    assert_close(result, reduced(inputs, op, prescale, postscale), dtype, roundings=8)


def test_average_of_integers_is_truncated_toward_zero(rank: int, size: int) -> None:
    low = np.array([-3, 3, 0], np.int32) if rank == 0 else np.zeros(3, np.int32)
    cut = [int(-3 / size), int(3 / size), 0]
    assert hvd.allreduce(low).tolist() == cut


def test_in_place_forms_write_into_the_array(rank: int, size: int) -> None:
    array = np.full((4, 3), rank + 1.0, np.float32)
    assert hvd.allreduce_(array, op=hvd.Sum) is array
    assert (array == size * (size + 1) / 2).all()
    array[:] = rank
    assert hvd.broadcast_(array, size - 1) is array
    assert (array == size - 1).all()
    one, two = np.full(3, rank), np.full((2, 2), 1.0 + rank)
    results = hvd.grouped_allreduce_([one, two], op=hvd.Max)
    assert results[0] is one
    assert one.tolist() == [size - 1] * 3
    assert (two == size).all()


def test_strided_arrays_are_communicated_and_written_back(rank: int, size: int) -> None:
    whole = np.arange(24.0).reshape(4, 6) * (rank + 1)
    total = size * (size + 1) / 2
    every_second = whole[:, ::2]
    np.testing.assert_allclose(hvd.allreduce(every_second, op=hvd.Sum), np.arange(24.0).reshape(4, 6)[:, ::2] * total)
    hvd.allreduce_(whole.T, op=hvd.Sum)
    np.testing.assert_allclose(whole, np.arange(24.0).reshape(4, 6) * total)


def test_complex_numbers(rank: int, size: int) -> None:
    parts = [np.arange(4.0).astype(np.complex64).reshape(2, 2) * (1 + 2j) * r for r in range(size)]
    np.testing.assert_array_equal(hvd.allreduce(parts[rank], op=hvd.Sum), np.sum(parts, 0))
    np.testing.assert_array_equal(hvd.broadcast(parts[rank].T, size - 1), parts[-1].T)
    np.testing.assert_array_equal(hvd.allgather(parts[rank][:1]), np.concatenate([part[:1] for part in parts]))


@dtypes
def test_grouped_allreduce(dtype: np.dtype[Any], rank: int, size: int) -> None:
    shapes = [(5,), (), (2, 3), (0, 2)]
    inputs = [[values(r, shape, dtype, seed) for r in range(size)] for seed, shape in enumerate(shapes)]
    results = hvd.grouped_allreduce([array[rank] for array in inputs], op=hvd.Sum)
    for result, arrays in zip(results, inputs, strict=True):
        assert_close(result, reduced(arrays, "Sum"), dtype)


def test_a_group_may_mix_types(rank: int, size: int) -> None:
    floats, ints = hvd.grouped_allreduce([np.full(3, 0.5, np.float32), np.full(2, rank)], op=hvd.Sum)
    assert floats.tolist() == [0.5 * size] * 3
    assert ints.tolist() == [size * (size - 1) // 2] * 2


@pytest.mark.parametrize("wire", ["fp16", "bf16"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_compression_keeps_the_type_and_most_of_the_value(wire: str, dtype: type, rank: int, size: int) -> None:
    inputs = [values(r, (1000,), np.dtype(dtype)) for r in range(size)]
    result = hvd.allreduce(inputs[rank], op=hvd.Sum, compression=getattr(hvd.Compression, wire))
    assert result.dtype == dtype
    tolerance = {"fp16": 2e-3, "bf16": 1.6e-2}[wire] * size
    np.testing.assert_allclose(result, reduced(inputs, "Sum"), atol=tolerance * 4)
    whole = hvd.allreduce(np.arange(5), op=hvd.Sum, compression=getattr(hvd.Compression, wire))
    assert whole.tolist() == [n * size for n in range(5)]


@dtypes
def test_broadcast_from_every_root(dtype: np.dtype[Any], rank: int, size: int) -> None:
    for root in range(size):
        for shape in SHAPES:
            result = hvd.broadcast(values(rank, shape, dtype), root)
            np.testing.assert_array_equal(result, values(root, shape, dtype))


@dtypes
def test_allgather_with_different_rows(dtype: np.dtype[Any], rank: int, size: int) -> None:
    for rows in (lambda r: r, lambda r: 3, lambda r: 5 if r == size - 1 else 0, lambda r: 0):
        result = hvd.allgather(values(rank, (rows(rank), 3), dtype))
        expected = np.concatenate([values(r, (rows(r), 3), dtype) for r in range(size)])
        np.testing.assert_array_equal(result, expected)
        assert result.dtype == dtype


def test_grouped_allgather(rank: int, size: int) -> None:
    one, two = hvd.grouped_allgather([np.full((rank + 1, 2), rank), np.full(2, 0.5 * rank, np.float32)])
    np.testing.assert_array_equal(one, np.concatenate([np.full((r + 1, 2), r) for r in range(size)]))
    np.testing.assert_array_equal(two, np.repeat(0.5 * np.arange(size), 2))


@dtypes
def test_alltoall(dtype: np.dtype[Any], rank: int, size: int) -> None:
    def splits_of(r: int) -> list[int]:
        return [(r + to) % 3 for to in range(size)]

    arrays = [values(r, (sum(splits_of(r)) + 1, 2), dtype) for r in range(size)]  # the last row is not sent
    result, received = hvd.alltoall(arrays[rank], splits=splits_of(rank))
    starts = [sum(splits_of(r)[:rank]) for r in range(size)]
    expected = [arrays[r][start : start + splits_of(r)[rank]] for r, start in enumerate(starts)]
    np.testing.assert_array_equal(result, np.concatenate(expected))
    assert received.tolist() == [splits_of(r)[rank] for r in range(size)]
    equal = hvd.alltoall(arrays[rank][:1].repeat(2 * size, 0))
    np.testing.assert_array_equal(equal, np.concatenate([arrays[r][:1].repeat(2, 0) for r in range(size)]))


@dtypes
@pytest.mark.parametrize("op", ["Average", "Sum"])
def test_reducescatter(dtype: np.dtype[Any], op: str, rank: int, size: int) -> None:
    for rows in (0, 1, size, 2 * size + 1, 4 * size):
        inputs = [values(r, (rows, 3), dtype) for r in range(size)]
        result = hvd.reducescatter(inputs[rank], op=getattr(hvd, op))
        assert_close(result, reduced(inputs, op)[rows_of(rank, size, rows)], dtype, roundings=4)


def test_grouped_reducescatter(rank: int, size: int) -> None:
    inputs = [values(r, (2 * size + 1, 2), np.dtype(np.float32)) for r in range(size)]
    one, two = hvd.grouped_reducescatter([inputs[rank], np.full(size, float(rank))], op=hvd.Sum)
    assert_close(one, reduced(inputs, "Sum")[rows_of(rank, size, 2 * size + 1)])
    assert two.tolist() == [size * (size - 1) / 2]


def test_booleans(rank: int, size: int) -> None:
    only_last = np.array([rank == size - 1, True])
    assert hvd.broadcast(only_last, size - 1).tolist() == [True, True]
    assert hvd.allgather(only_last[:1]).tolist() == [r == size - 1 for r in range(size)]
    assert hvd.allreduce(only_last, op=hvd.Min).tolist() == [size == 1, True]
    assert hvd.allreduce(only_last, op=hvd.Max).tolist() == [True, True]


def test_large_arrays(rank: int, size: int) -> None:
    count = 3_000_017
    array = np.full(count, rank + 1, np.float32)
    array[-1] = rank
    result = hvd.allreduce(array, op=hvd.Sum)
    assert (result[:-1] == size * (size + 1) / 2).all()
    assert result[-1] == size * (size - 1) / 2
    gathered = hvd.allgather(array[: 100_003 + rank])
    assert gathered.shape == (sum(100_003 + r for r in range(size)),)
    assert (hvd.broadcast(array, size - 1)[:-1] == size).all()


def test_arrays_in_the_arena(rank: int, size: int) -> None:
    array = hvd.empty((1000, 7), np.float32)
    assert array.shape == (1000, 7)
    for step in range(3):
        array[:] = rank + step
        hvd.allreduce_(array, op=hvd.Sum)
        assert (array == size * (size - 1) / 2 + size * step).all()
    hvd.empty(0, np.int32)


def test_handles(rank: int, size: int) -> None:
    handles = [hvd.allreduce_async(np.full(3, float(n)), op=hvd.Sum, name=f"handle{n}") for n in range(20)]
    assert all(isinstance(handle, int) for handle in handles)
    for n, handle in reversed(list(enumerate(handles))):
        np.testing.assert_array_equal(hvd.synchronize(handle), np.full(3, float(n * size)))
        assert hvd.synchronize(handle) is None
        with pytest.raises(ValueError, match="synchronized before"):
            hvd.poll(handle)
    handle = hvd.alltoall_async(np.arange(size))
    while not hvd.poll(handle):
        pass
    output, received = hvd.synchronize(handle)
    assert output.tolist() == [rank] * size
    assert received.tolist() == [1] * size


def test_objects(rank: int, size: int) -> None:
    mine: dict[str, Any] = {"rank": rank, "text": "x" * (rank * 1000), "array": np.arange(rank)}
    for root in range(size):
        got = hvd.broadcast_object(mine if rank == root else None, root)
        assert got["rank"] == root
        assert len(got["text"]) == 1000 * root
    everybody = hvd.allgather_object(mine)
    assert [each["rank"] for each in everybody] == list(range(size))
    assert hvd.broadcast_object(None, 0) is None
    assert hvd.allgather_object(None) == [None] * size


def test_join_after_uneven_steps(rank: int, size: int) -> None:
    for step in range(rank + 1):
        present = size - step  # ranks below `step` have joined and count as zeros
        result = hvd.allreduce(np.ones(3, np.float32), op=hvd.Average, name=f"uneven{step}")
        np.testing.assert_allclose(result, present / size, rtol=1e-6)
    last = hvd.join()
    assert len(set(hvd.allgather_object(last))) == 1
    assert 0 <= last < size


def test_a_factor_that_is_nan_gives_nan(rank: int, size: int) -> None:
    """A factor can be a loss that has become NaN. The ranks must not report that their factors differ."""
    for _ in range(3):
        assert np.isnan(hvd.allreduce(np.ones(3), name="by nan", prescale_factor=float("nan"))).all()


def test_shared_memory_of_the_program_is_reduced_in_place(rank: int, size: int) -> None:
    block = SharedMemory(create=True, size=3_000_000)
    try:
        assert block.buf is not None
        array = np.frombuffer(block.buf, np.float32)[10:700_010].reshape(7, -1)
        for step in range(4):
            array[:] = rank + step
            assert hvd.allreduce_(array, op=hvd.Sum) is array
            assert (array == size * step + sum(range(size))).all()
        names = hvd.allgather_object(block.name.lstrip("/"))
        maps = Path("/proc/self/maps").read_text()
        reached = [f"/dev/shm/{name}" in maps for name in names]
        assert all(reached) or os.environ.get("PERSEUS_CPU_TRANSPORT") == "oneccl"  # oneCCL uses its own buffers
        del array
    finally:
        block.close()
        block.unlink()
