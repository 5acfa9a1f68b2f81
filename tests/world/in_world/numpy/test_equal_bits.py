"""Checks that sums of floats are bit-identical on all ranks and in repeated calls, and near the sums in float64."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import ml_dtypes
import numpy as np
import pytest

import perseus_like.numpy as hvd

finfo: Any = ml_dtypes.finfo  # only some releases have type annotations

# These counts are near the sizes at which transports change their algorithm.
COUNTS = [1, 2, 31, 500, 4097, 16_384, 70_001, 300_000, 1_100_003]
FLOATS = [np.dtype(kind) for kind in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)]


def inputs(count: int, dtype: np.dtype[Any], size: int) -> list[np.ndarray[Any, Any]]:
    return [np.random.default_rng([r, count]).normal(size=count).astype(dtype) for r in range(size)]


@pytest.mark.parametrize("op", ["Sum", "Average"])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
def test_sums(dtype: np.dtype[Any], op: str, rank: int, size: int) -> None:
    for count in COUNTS:
        all_inputs = inputs(count, dtype, size)
        result = hvd.allreduce(all_inputs[rank], op=getattr(hvd, op), name=f"{op}.{dtype.name}.{count}")
        again = hvd.allreduce(all_inputs[rank], op=getattr(hvd, op), name=f"{op}.{dtype.name}.{count}")
        assert result.tobytes() == again.tobytes()
        assert len(set(hvd.allgather_object(crc32(result.tobytes())))) == 1
        exact = np.sum([array.astype(np.float64) for array in all_inputs], axis=0)
        if op == "Average":
            exact = exact / size
        tolerance = float(finfo(dtype).eps) * size * 8
        np.testing.assert_allclose(result.astype(np.float64), exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("op", ["Min", "Max"])
def test_extremes_with_a_nan(op: str, rank: int, size: int) -> None:
    array = np.arange(3000, dtype=np.float32) + rank
    array[rank] = np.nan
    result = hvd.allreduce(array, op=getattr(hvd, op))
    assert np.isnan(result[:size]).all()
    assert not np.isnan(result[size:]).any()
