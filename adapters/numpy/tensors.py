"""The description of NumPy arrays for the core; with bfloat16 if ml_dtypes is installed."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from perseus_like.session import session
from perseus_like.tables import DType
from perseus_like.tensor import ArrayTensors

try:
    from ml_dtypes import bfloat16
except ImportError:
    _EXTRA: list[tuple[np.dtype[Any], DType]] = []
else:
    _EXTRA = [(np.dtype(bfloat16), DType.bfloat16)]

tensors = ArrayTensors(_EXTRA)


def empty(shape: int | Sequence[int], dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """Returns an array in memory that the ranks of this host reduce in place, where collectives are fastest.

    Raises UnavailableError if no such memory is left.
    """
    sizes = [operator.index(shape)] if isinstance(shape, int | np.integer) else [operator.index(n) for n in shape]
    return tensors.from_buffer(session.core.allocate(sizes, tensors.number_of(dtype)))
