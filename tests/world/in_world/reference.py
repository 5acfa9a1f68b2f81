"""Computes the expected results of collectives from the inputs of all ranks, in plain NumPy and float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]

INTEGERS = [np.uint8, np.int8, np.uint16, np.int16, np.int32, np.int64]
FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
DTYPES = [np.dtype(dtype) for dtype in [*INTEGERS, *FLOATS]]

# The error of one rounding to the dtype, relative to the largest term.
TOLERANCES = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "float64": 1e-14}


def is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.name in TOLERANCES


def values(rank: int, shape: tuple[int, ...], dtype: np.dtype[Any], seed: int = 0) -> Array:
    """Returns the input of `rank`. Its values are so small that sums of integers do not overflow."""
    random = np.random.default_rng([seed, rank])
    if is_float(dtype):
        return np.asarray(random.standard_normal(shape)).astype(dtype)
    low = 0 if dtype.kind == "u" else -9
    return random.integers(low, 10, shape).astype(dtype)


def reduced(inputs: list[Array], op: str, prescale: float = 1.0, postscale: float = 1.0) -> Array:
    """Returns the reduction in float64. Integers are truncated toward zero after each factor, as in Horovod."""
    dtype = inputs[0].dtype
    terms = [_scaled(array.astype(np.float64), prescale, dtype) for array in inputs]
    stacked = np.stack(terms)
    if op == "Average":
        result = _scaled(stacked.sum(0), 1 / len(inputs), dtype)
    else:
        functions: dict[str, Any] = {"Sum": np.sum, "Min": np.min, "Max": np.max, "Product": np.prod}
        result = functions[op](stacked, axis=0)
    return _scaled(result, postscale, dtype)


def _scaled(array: Array, factor: float, dtype: np.dtype[Any]) -> Array:
    if is_float(dtype):
        return array * factor
    # 0.3 * 10 is 2.999…, so a value that differs from a whole number only by rounding becomes this whole number.
    scaled = array * factor
    near = np.round(scaled)
    return np.where(np.abs(scaled - near) < 1e-9, near, np.trunc(scaled))


def assert_close(actual: Array, expected: Array, dtype: np.dtype[Any] | None = None, roundings: float = 2) -> None:
    """Asserts that integers are equal, and that floats differ by at most some roundings of the largest value."""
    dtype = dtype or actual.dtype
    assert actual.dtype == dtype
    assert actual.shape == expected.shape
    if not is_float(dtype):
        np.testing.assert_array_equal(actual.astype(np.float64), expected)
        return
    largest = float(np.abs(expected).max(initial=1.0))
    atol = roundings * TOLERANCES[dtype.name] * largest
    np.testing.assert_allclose(actual.astype(np.float64), expected, rtol=0, atol=atol)


def rows_of(rank: int, size: int, rows: int) -> slice:
    """Returns the rows of a rank's part of a reduce-scatter: the first ranks have one more."""
    each, more = divmod(rows, size)
    start = rank * each + min(rank, more)
    return slice(start, start + each + (rank < more))


def adasum(inputs: list[Array]) -> Array:
    """Returns Adasum of all ranks' vectors: first of ranks 0 and 1, 2 and 3, …, and then of these results in pairs."""
    vectors = [array.astype(np.float64) for array in inputs]
    while len(vectors) > 1:
        pairs = [vectors[i : i + 2] for i in range(0, len(vectors), 2)]
        vectors = [_adasum_of_two(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return vectors[0]


def _adasum_of_two(a: Array, b: Array) -> Array:
    product, of_a, of_b = np.vdot(a, b), np.vdot(a, a), np.vdot(b, b)
    part_of_a = 1 - product / (2 * of_a) if of_a > 0 else 1.0
    part_of_b = 1 - product / (2 * of_b) if of_b > 0 else 1.0
    return np.asarray(part_of_a * a + part_of_b * b)
