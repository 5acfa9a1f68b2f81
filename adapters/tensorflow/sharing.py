"""Tensors of which each host has one copy."""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from perseus_like.docstrings import documented_as
from perseus_like.host_memory.sharing import ArrayPickler, share

T = TypeVar("T")
_LARGEST_INTEGER = 8  # bytes


@documented_as(share)
def shared(make: Callable[[], T], name: str) -> T:
    """Returns the object that `make` returns on one rank of each host, in memory that its ranks share.

    The first rank of each host calls `make`. The other ranks of the host map the tensors and arrays that it returns, so
    that the host has one copy of them. The memory is read-only on all ranks. The call is collective over all ranks of
    the job, and works eagerly only.

    Args:
        make: a function without arguments that returns a tensor, or an object that contains tensors or NumPy arrays and
            can be pickled, such as a dictionary. Each rank has a copy of variables, and of tensors of strings or
            booleans.

    Examples:
        >>> table = hvd.shared(lambda: tf.range(4.0), "table")
        >>> float(table[3])
        3.0
    """
    return share(make, name, _TensorPickler)


class _TensorPickler(ArrayPickler):
    """Pickles eager tensors of numbers without their memory."""

    def reducer_override(self, obj: Any) -> Any:
        if not _is_shareable(obj):
            return super().reducer_override(obj)
        array = np.ascontiguousarray(obj.numpy())
        # Read-only memory and types that NumPy does not know travel as bytes.
        memory = pickle.PickleBuffer(array.reshape(-1).view(np.uint8).data)
        return _tensor_over, (memory, obj.dtype.as_datatype_enum, tuple(obj.shape))


def _is_shareable(obj: Any) -> bool:
    if not isinstance(obj, tf.Tensor) or not hasattr(obj, "numpy"):
        return False
    numeric = obj.dtype.is_floating or obj.dtype.is_integer or obj.dtype.is_complex
    return bool(numeric and obj.dtype.size and tf.size(obj))


def _tensor_over(memory: memoryview, datatype: int, shape: tuple[int, ...]) -> tf.Tensor:
    """Returns a tensor over the memory, which it keeps."""
    view = np.frombuffer(memory, np.uint8)
    # NumPy exports no read-only memory by dlpack, but an array over an object of ctypes is writable for it.
    exported = (ctypes.c_ubyte * view.nbytes).from_address(view.ctypes.data)
    exported.memory = view  # type: ignore[attr-defined]
    dtype = tf.dtypes.as_dtype(datatype)
    # dlpack has no bfloat16, so that numbers travel as unsigned integers. There are none of 16 bytes.
    is_short = dtype.size <= _LARGEST_INTEGER
    words: np.dtype[Any] = np.dtype(f"u{dtype.size}" if is_short else dtype.as_numpy_dtype)
    with tf.device("CPU:0"):
        tensor = tf.experimental.dlpack.from_dlpack(np.frombuffer(memoryview(exported), words).__dlpack__())
        return tf.reshape(tf.bitcast(tensor, dtype), shape)
