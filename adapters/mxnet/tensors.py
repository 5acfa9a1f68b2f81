"""MXNet's arrays as the core sees them."""

from __future__ import annotations

import ctypes
from typing import Any

import mxnet as mx
import numpy as np

from perseus_like.tensor import ArrayTensors, DType, View

# MXNet 1.9 has a bfloat16 of its own: a record of one 16-bit field.
_arrays = ArrayTensors([(np.dtype([("bfloat16", np.uint16)]), DType.bfloat16)])
_CPU = 1


def checked(tensor: Any) -> Any:
    """The array itself. ValueError for what is none that can be communicated."""
    if not isinstance(tensor, mx.nd.NDArray):
        raise ValueError(f"an mxnet NDArray is needed, not {type(tensor).__name__}")
    if tensor.stype != "default":
        raise ValueError(f"a {tensor.stype} array is not a dense one; pass array.tostype('default')")
    if tensor.ctx.device_typeid != _CPU:
        raise ValueError(f"arrays on {tensor.ctx} are not supported yet; pass array.as_in_context(mxnet.cpu())")
    return tensor


def number_of(tensor: Any) -> int:
    """The core's number of its dtype. ValueError for one that the core does not carry."""
    return _arrays.number_of(tensor.dtype)


def is_numpy(tensor: Any) -> bool:
    """Whether it is one of `mxnet.np`, not of `mxnet.nd`."""
    return isinstance(tensor, mx.np.ndarray)


def new_array(shape: tuple[int, ...], like: Any) -> Any:
    """An array of undefined values, of the kind, dtype and device of another."""
    module = mx.np if is_numpy(like) else mx.nd
    return module.empty(shape, dtype=like.dtype, ctx=like.ctx)


class MxnetTensors:
    """The adapter that `perseus_like.collectives` works through, for verbs that wait for their result.

    Those that need not are functions of MXNet's engine (`engine.py`).
    """

    def contiguous(self, tensor: Any) -> Any:
        return checked(tensor)

    def view(self, tensor: Any) -> View:
        """Waits until the array has been computed."""
        tensor.wait_to_read()
        return (address_of(tensor), number_of(tensor), tensor.shape, -1)

    def empty_like(self, tensor: Any) -> Any:
        return new_array(tensor.shape, tensor)

    def from_buffer(self, buffer: Any, like: Any) -> Any:
        # A copy: memory that is lent to MXNet it gives back from a thread of its own, at exit to a Python that is gone.
        array = new_array(tuple(buffer.shape), like)
        if len(buffer):
            ctypes.memmove(address_of(array), buffer.address, len(buffer))
        return array

    def copy_into(self, target: Any, source: Any) -> None:
        target[:] = source


def address_of(tensor: Any) -> int:
    """Where the elements of an array are that nobody writes to at the moment."""
    address = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(tensor.handle, ctypes.byref(address)))
    return address.value or 0


def memory_of(tensor: Any) -> np.ndarray[Any, Any]:
    """The elements themselves, of an array that nobody writes to at the moment and that outlives this view."""
    dtype = np.dtype(tensor.dtype)
    space = (ctypes.c_char * (tensor.size * dtype.itemsize)).from_address(address_of(tensor))
    view: np.ndarray[Any, Any] = np.ndarray(tensor.shape, dtype, space)
    return view


tensors = MxnetTensors()
