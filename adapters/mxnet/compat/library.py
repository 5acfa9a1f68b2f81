"""MXNet's C library, as MXNet's Python code uses it."""

from __future__ import annotations

import ctypes
from typing import Any

import mxnet as mx


def library_handle() -> int:
    """Returns the dlopen handle of libmxnet.so.

    Relies on: `mxnet.base._LIB`, a ctypes.CDLL, and its `_handle`.
    Tried with: 1.9.1.
    Notices: an attribute is missing.
    Lost then: collectives of this adapter fail with Python's AttributeError.
    """
    return int(mx.base._LIB._handle)


def handle_of(array: Any) -> ctypes.c_void_p:
    """Returns the NDArrayHandle of an array.

    Relies on: `NDArray.handle`, a ctypes.c_void_p.
    Tried with: 1.9.1.
    Notices: the attribute is missing.
    Lost then: collectives of this adapter fail with Python's AttributeError.
    """
    handle: ctypes.c_void_p = array.handle
    return handle


def array_of(handle: int | None) -> Any:
    """Returns an array that owns an NDArrayHandle.

    Relies on: `mxnet.nd.NDArray(handle)` and `mxnet.base.NDArrayHandle`, a ctypes.c_void_p.
    Tried with: 1.9.1.
    Notices: the call fails, or the array has other elements.
    Lost then: `perseus_like.mxnet.empty` and DistributedTrainer fail with Python's AttributeError or TypeError.
    """
    return mx.nd.NDArray(mx.base.NDArrayHandle(handle))


def address_of(array: Any) -> int:
    """Returns the address of the elements of an array on the CPU that nobody writes to at the moment.

    Relies on: `mxnet.base._LIB` and `mxnet.base.check_call`, for the documented C function MXNDArrayGetData.
    Tried with: 1.9.1.
    Notices: an attribute is missing.
    Lost then: collectives that return a new array fail with Python's AttributeError.
    """
    address = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(handle_of(array), ctypes.byref(address)))
    return address.value or 0
