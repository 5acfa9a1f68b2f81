"""What a framework's adapter tells about its tensors; all that the rules in `collectives` know of them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Protocol, TypeVar

import numpy as np

T = TypeVar("T")

# Address, dtype, shape, device (-1: host).
View = tuple[int, int, tuple[int, ...], int]


class DType(IntEnum):
    """Element types by the core's numbers, here so that tables can be made without loading the core."""

    uint8 = 0
    int8 = 1
    int16 = 2
    int32 = 3
    int64 = 4
    float16 = 5
    bfloat16 = 6
    float32 = 7
    float64 = 8
    boolean = 9
    uint16 = 10


AS_IT_IS = -1  # no conversion on the way


class Start(IntEnum):
    """Who carries an allreduce on, by the core's numbers."""

    engine = 0  # its thread, which is woken
    call = 1  # the call itself: it is complete on return
    waiter = 2  # the caller, whose next call waits for it; no thread is woken


FLOATING = frozenset({DType.float16, DType.bfloat16, DType.float32, DType.float64})
WIDE_FLOATING = frozenset({DType.float32, DType.float64})


class TensorAdapter(Protocol[T]):
    """Five things a framework can do with its tensors."""

    def contiguous(self, tensor: T) -> T:
        """The tensor itself if its memory is row-major, else such a copy. ValueError for what is no tensor to us."""

    def view(self, tensor: T) -> View:
        """Where the elements of a contiguous tensor are. ValueError for a dtype that the core does not carry."""

    def empty_like(self, tensor: T) -> T:
        """A new contiguous tensor of the same shape, dtype and device."""

    def from_buffer(self, buffer: Any, like: T) -> T:
        """A tensor over memory of the core (`_core.Buffer`), which lives as long as the tensor; on `like`'s device."""

    def copy_into(self, target: T, source: T) -> None:
        """Overwrites the elements of `target`, whatever its strides."""


class ArrayTensors:
    """NumPy arrays: the adapter that bytes travel by, and the one to copy from."""

    def __init__(self, extra_dtypes: Sequence[tuple[np.dtype[Any], DType]] = ()) -> None:
        self._numbers: dict[np.dtype[Any], int] = {
            np.dtype(np.bool_ if dtype is DType.boolean else dtype.name): int(dtype)
            for dtype in DType
            if dtype is not DType.bfloat16
        }
        self._numbers.update({array_dtype: int(dtype) for array_dtype, dtype in extra_dtypes})
        self._dtypes = {number: dtype for dtype, number in self._numbers.items()}

    def contiguous(self, tensor: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return tensor if tensor.flags.c_contiguous else tensor.copy(order="C")

    def view(self, tensor: np.ndarray[Any, Any]) -> View:
        number = self._numbers.get(tensor.dtype)
        if number is None:
            raise ValueError(f"arrays of dtype {tensor.dtype} cannot be communicated; {self._names()} can")
        return (tensor.ctypes.data, number, tensor.shape, -1)

    def empty_like(self, tensor: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.empty(tensor.shape, tensor.dtype)

    def from_buffer(self, buffer: Any, like: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        dtype = self._dtypes[buffer.dtype]
        if len(buffer) == 0:
            return np.empty(buffer.shape, dtype)
        array: np.ndarray[Any, Any] = np.frombuffer(buffer, dtype).reshape(buffer.shape)
        return array

    def copy_into(self, target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
        np.copyto(target, source)

    def number_of(self, dtype: Any) -> int:
        """The core's number of a NumPy dtype."""
        number = self._numbers.get(np.dtype(dtype))
        if number is None:
            raise ValueError(f"arrays of dtype {dtype} cannot be communicated; {self._names()} can")
        return number

    def _names(self) -> str:
        return ", ".join(str(dtype) for dtype in self._numbers)
