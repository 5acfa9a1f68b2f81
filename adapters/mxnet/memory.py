"""MXNet's arrays in memory that the ranks of a host share."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np

from perseus_like.errors import UnavailableError
from perseus_like.session import session

from .compat.library import array_of
from .engine import Message, native

# DLPack's type codes, by NumPy's kinds.
_KINDS = {"i": 0, "u": 1, "f": 2}


class Memory:
    """A block of zeros. `why_private` is empty if it is in the arena, where collectives are fastest."""

    def __init__(self, size_bytes: int) -> None:
        session.core.rank()  # raises before init()
        message = Message()
        address = native().perseus_mxnet_allocate(ctypes.c_size_t(max(size_bytes, 1)), *message.space)
        if not address:
            raise UnavailableError(f"cannot allocate {size_bytes} bytes for arrays: {message}")
        self.why_private = str(message)
        self._handle = ctypes.c_void_p(address)
        weakref.finalize(self, native().perseus_mxnet_release, self._handle)

    def view(self, offset_bytes: int, shape: Sequence[int], dtype: Any) -> Any:
        """Returns an array over a part of the block, which keeps the whole block alive."""
        numpy_dtype = np.dtype(dtype)
        extents = (ctypes.c_int64 * len(shape))(*shape)
        handle = ctypes.c_void_p()
        message = Message()
        kind, bits = _KINDS[numpy_dtype.kind], 8 * numpy_dtype.itemsize
        if native().perseus_mxnet_view(
            self._handle,
            ctypes.c_size_t(offset_bytes),
            kind,
            bits,
            extents,
            len(shape),
            ctypes.byref(handle),
            *message.space,
        ):
            raise mx.base.MXNetError(str(message))
        return array_of(handle.value)


def empty(shape: int | Sequence[int], dtype: Any = np.float32) -> Any:
    """Returns an array of zeros on the CPU, in memory that the ranks of this host share.

    Collectives reduce such an array in place without copying it, which is the fastest way.

    Args:
        shape: the shape, or the number of elements of a one-dimensional array.
        dtype: a NumPy dtype, or what `np.dtype` accepts, except for int8 and bool.

    Returns:
        An array whose memory is freed when no array refers to it.

    Raises:
        UnavailableError: no such memory is left.
        ValueError: MXNet cannot use such memory for this dtype.

    Examples:
        >>> gradients = hvd.empty((2, 3))
        >>> hvd.allreduce_(gradients, op=hvd.Max).shape
        (2, 3)
    """
    if np.dtype(dtype).kind not in _KINDS or np.dtype(dtype) == np.int8:
        raise ValueError(f"empty: MXNet cannot use shared memory for arrays of dtype {dtype}; use mxnet.nd.empty")
    sizes = [shape] if isinstance(shape, int | np.integer) else list(shape)
    memory = Memory(math.prod(sizes) * np.dtype(dtype).itemsize)
    if memory.why_private:
        raise UnavailableError(memory.why_private)
    return memory.view(0, sizes, dtype)
