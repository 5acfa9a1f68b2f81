"""The description of MXNet's arrays for the core."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np

from perseus_like.tables import DType
from perseus_like.tensor import ArrayTensors, TensorAdapter, View

from .compat.library import address_of

# MXNet 1.9 has a bfloat16 of its own: a record of one 16-bit field.
_arrays = ArrayTensors([(np.dtype([("bfloat16", np.uint16)]), DType.bfloat16)])
_CPU = 1

Array = Any  # mxnet.nd.NDArray or mxnet.np.ndarray


def checked(tensor: Any) -> Any:
    """Returns the array. Raises ValueError for one that cannot be communicated."""
    if not isinstance(tensor, mx.nd.NDArray):
        raise ValueError(f"collectives take an mxnet NDArray, not {type(tensor).__name__}")
    if tensor.stype != "default":
        raise ValueError(
            f"collectives take dense arrays, and this array is {tensor.stype}; pass array.tostype('default')"
        )
    if tensor.ctx.device_typeid != _CPU:
        raise ValueError(
            f"collectives take arrays on the CPU, not on {tensor.ctx}; pass array.as_in_context(mxnet.cpu())"
        )
    return tensor


def number_of(tensor: Any) -> int:
    """Returns the core's number of the array's dtype. Raises ValueError for a dtype that the core does not know."""
    return _arrays.number_of(tensor.dtype)


def is_numpy(tensor: Any) -> bool:
    """Returns whether the array is one of `mxnet.np`, not of `mxnet.nd`."""
    return isinstance(tensor, mx.np.ndarray)


def new_array(shape: tuple[int, ...], like: Any) -> Any:
    """Returns an array of undefined values with the kind, dtype and device of `like`."""
    module = mx.np if is_numpy(like) else mx.nd
    return module.empty(shape, dtype=like.dtype, ctx=like.ctx)


def new_like(arrays: Sequence[Array]) -> list[Array]:
    """Returns arrays of undefined values with the shapes, kinds, dtypes and devices of `arrays`."""
    return [new_array(array.shape, array) for array in map(checked, arrays)]


class MxnetTensors(TensorAdapter[Any]):
    """The tensor interface of `perseus_like.collectives`, for collectives that wait for their result.

    All other collectives are functions of MXNet's engine (`engine.py`).
    """

    def contiguous(self, tensor: Any) -> Any:
        return checked(tensor)

    def view(self, tensor: Any) -> View:
        """Blocks until the array has been computed. Returns its description."""
        tensor.wait_to_read()
        return (address_of(tensor), number_of(tensor), tensor.shape, -1)

    def is_complex(self, tensor: Any) -> bool:
        return False

    def empty_like(self, tensor: Any) -> Any:
        return new_array(tensor.shape, tensor)

    def from_buffer(self, buffer: Any, like: Any) -> Any:
        # The elements are copied. MXNet would release borrowed memory from its own thread, possibly after Python has
        # ended.
        array = new_array(tuple(buffer.shape), like)
        if len(buffer):
            ctypes.memmove(address_of(array), buffer.address, len(buffer))
        return array

    def copy_into(self, target: Any, source: Any) -> None:
        target[:] = source


def memory_of(tensor: Any) -> np.ndarray[Any, Any]:
    """Returns a view of the elements. Nothing may write to the array, and the array must outlive the view."""
    dtype = np.dtype(tensor.dtype)
    space = (ctypes.c_char * (tensor.size * dtype.itemsize)).from_address(address_of(tensor))
    view: np.ndarray[Any, Any] = np.ndarray(tensor.shape, dtype, space)
    return view


tensors = MxnetTensors()
