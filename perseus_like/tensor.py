"""The interface between a framework's tensors and the rules in `collectives`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from .tables import DType, ReduceOp

if TYPE_CHECKING:
    import numpy as np
else:

    class _LazyNumPy:
        """Has NumPy's functions and types as attributes, and imports NumPy on first use.

        Launchers use none, and importing it takes 90 ms of processor time.
        """

        def __getattr__(self, name: str) -> Any:
            import numpy

            found = getattr(numpy, name)
            setattr(self, name, found)
            return found

    np = _LazyNumPy()

T = TypeVar("T")

# Address, dtype, shape, device (-1: host).
View = tuple[int, int, tuple[int, ...], int]


AS_IT_IS = -1  # the wire dtype is the tensor's own


class ReduceOptions(NamedTuple):
    """The options of a reduction, in the numbers of the core. All ranks pass the same; the binding reads the fields."""

    op: int = int(ReduceOp.sum)
    average: bool = False  # the sum is divided by the number of ranks
    prescale: float = 1.0
    postscale: float = 1.0
    wire_dtype: int = AS_IT_IS  # float16 or bfloat16: the core converts float32 and float64 while it packs them


SUM = ReduceOptions()
AVERAGE = ReduceOptions(average=True)
WIDE_FLOATING = frozenset({DType.float32, DType.float64})


class TensorAdapter(Protocol[T]):
    """The operations that a framework provides for its tensors."""

    def contiguous(self, tensor: T) -> T:
        """Returns the tensor itself if its memory is row-major, else a row-major copy. ValueError for other objects."""

    def view(self, tensor: T) -> View:
        """Returns the address, dtype, shape and device of a contiguous tensor. ValueError for an unsupported dtype.

        A complex tensor has the dtype of its real and imaginary parts, and a last dimension of 2.
        """

    def direct_view(self, tensor: T) -> View | None:
        """Returns the view of a real tensor that `contiguous` returns itself. None: call `contiguous` and `view`."""
        return None

    def is_complex(self, tensor: T) -> bool:
        """Returns whether the elements are complex numbers."""

    def empty_like(self, tensor: T) -> T:
        """Returns a new contiguous tensor of the same shape, dtype and device."""

    def from_buffer(self, buffer: Any, like: T) -> T:
        """Returns a tensor over memory of the core (`_core.Buffer`) on `like`'s device. It keeps the memory alive."""

    def copy_into(self, target: T, source: T) -> None:
        """Overwrites the elements of `target`, which may have any strides."""


class ArrayTensors(TensorAdapter["np.ndarray[Any, Any]"]):
    """The adapter of NumPy arrays. Object collectives use it, and it is the one to copy from."""

    def __init__(self, extra_dtypes: Sequence[tuple[np.dtype[Any], DType]] = ()) -> None:
        self._extra_dtypes = extra_dtypes

    @cached_property
    def _numbers(self) -> dict[np.dtype[Any], int]:
        """The core's number of each dtype."""
        numbers: dict[np.dtype[Any], int] = {
            np.dtype(np.bool_ if dtype is DType.boolean else dtype.name): int(dtype)
            for dtype in DType
            if dtype is not DType.bfloat16
        }
        numbers.update({array_dtype: int(dtype) for array_dtype, dtype in self._extra_dtypes})
        return numbers

    @cached_property
    def _dtypes(self) -> dict[int, np.dtype[Any]]:
        return {number: dtype for dtype, number in self._numbers.items()}

    def contiguous(self, tensor: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return tensor if tensor.flags.c_contiguous else tensor.copy(order="C")

    def view(self, tensor: np.ndarray[Any, Any]) -> View:
        number = self._numbers.get(tensor.dtype)
        if number is not None:
            return (tensor.ctypes.data, number, tensor.shape, -1)
        if self.is_complex(tensor):
            return (tensor.ctypes.data, self.number_of(tensor.real.dtype), (*tensor.shape, 2), -1)
        raise self._unsupported(tensor.dtype)

    def is_complex(self, tensor: np.ndarray[Any, Any]) -> bool:
        return np.iscomplexobj(tensor)

    def empty_like(self, tensor: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.empty(tensor.shape, tensor.dtype)

    def from_buffer(self, buffer: Any, like: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        dtype = self._dtypes[buffer.dtype]
        if like is not None and self.is_complex(like):
            pairs: np.ndarray[Any, Any] = self.from_buffer(buffer).view(like.dtype)
            return pairs[..., 0]
        if len(buffer) == 0:
            return np.empty(buffer.shape, dtype)
        result: np.ndarray[Any, Any] = np.frombuffer(buffer, dtype).reshape(buffer.shape)
        return result

    def copy_into(self, target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
        np.copyto(target, source)

    def number_of(self, dtype: Any) -> int:
        """Returns the core's number of a NumPy dtype."""
        number = self._numbers.get(np.dtype(dtype))
        if number is None:
            raise self._unsupported(dtype)
        return number

    def _unsupported(self, dtype: Any) -> ValueError:
        names = ", ".join(str(dtype) for dtype in self._numbers)
        return ValueError(f"arrays of dtype {dtype} cannot be communicated; convert them to one of {names}")
