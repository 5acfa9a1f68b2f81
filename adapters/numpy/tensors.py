"""The description of NumPy arrays for the core; with bfloat16 if ml_dtypes is installed."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np

from perseus_like.collectives import Collectives
from perseus_like.host_memory.registration import LARGE_ELEMENTS, register_if_mapped
from perseus_like.session import session
from perseus_like.tables import DType
from perseus_like.tensor import ArrayTensors, View

try:
    from ml_dtypes import bfloat16
except ImportError:
    _EXTRA: list[tuple[np.dtype[Any], DType]] = []
else:
    _EXTRA = [(np.dtype(bfloat16), DType.bfloat16)]


class NumPyTensors(ArrayTensors):
    """The adapter of the users' arrays, some of which lie in memory that processes share."""

    def view(self, tensor: np.ndarray[Any, Any]) -> View:
        if tensor.base is not None and tensor.size >= LARGE_ELEMENTS:
            register_if_mapped(tensor)
        return super().view(tensor)


tensors = NumPyTensors(_EXTRA)

# The scalar type of an array. If an argument does not determine it, it is Any, which only type checkers can express.
if TYPE_CHECKING:
    from typing_extensions import TypeVar

    S = TypeVar("S", bound=np.generic, default=Any)
else:
    from typing import TypeVar

    S = TypeVar("S", bound=np.generic)

Array: TypeAlias = np.ndarray[Any, np.dtype[S]]
# Arguments that `np.asarray` converts.
Plain: TypeAlias = float | np.generic | Sequence[Any]

verbs: Collectives[Array[Any]] = Collectives(tensors)


@overload
def empty(shape: int | Sequence[int]) -> Array[np.float32]: ...
@overload
def empty(shape: int | Sequence[int], dtype: type[S] | np.dtype[S]) -> Array[S]: ...
@overload
def empty(shape: int | Sequence[int], dtype: Any) -> Array[Any]: ...
def empty(shape: int | Sequence[int], dtype: Any = "float32") -> Array[Any]:
    """Returns an uninitialized array in memory that the ranks of this host share.

    Collectives reduce such an array in place without copying it, which is the fastest way.

    Args:
        shape: the shape, or the number of elements of a one-dimensional array.
        dtype: a NumPy dtype, or what `np.dtype` accepts.

    Returns:
        An array whose memory is freed when no array refers to it.

    Raises:
        ValueError: the dtype cannot be communicated.
        UnavailableError: no such memory is left.
        NotInitializedError: `init` was not called.

    Examples:
        >>> gradients = hvd.empty((2, 3), np.float32)
        >>> gradients[:] = hvd.rank()
        >>> hvd.allreduce_(gradients, op=hvd.Max).shape
        (2, 3)
    """
    sizes = [operator.index(shape)] if isinstance(shape, int | np.integer) else [operator.index(n) for n in shape]
    return tensors.from_buffer(session.core.allocate(sizes, tensors.number_of(dtype)))
