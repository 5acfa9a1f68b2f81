"""Compression of gradients. An adapter derives classes for the tensors of its framework."""

from __future__ import annotations

from typing import Any, ClassVar

from .tables import DType
from .tensor import AS_IT_IS, WIDE_FLOATING


class Compressor:
    """The interface. If a class sets `wire`, the core converts to this wire dtype while it packs the buffer."""

    wire: ClassVar[DType | None] = None

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns a smaller tensor, and the context that `decompress` needs."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns the tensor as it was before `compress`, up to the loss of the compression."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Leaves the tensor unchanged."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


def is_identity(compression: Any) -> bool:
    return compression is NoneCompressor


def wire_of(compression: Any) -> DType | None:
    """Returns the wire dtype to which the core converts, or None if `compress` has to be called."""
    # Not getattr: a class derived by a user has its own `compress`, which the core does not know.
    wire: DType | None = vars(compression).get("wire")
    return wire


def wire_dtype(wire: DType | None, dtype: int) -> int:
    """Returns the core's `wire_dtype` for a tensor of `dtype`. Only float32 and float64 are converted."""
    return int(wire) if wire is not None and dtype in WIDE_FLOATING else AS_IT_IS
