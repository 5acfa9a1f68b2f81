"""How gradients travel: as they are, or with fewer bits. An adapter derives classes that also speak its tensors."""

from __future__ import annotations

from typing import Any, ClassVar

from .tensor import AS_IT_IS, WIDE_FLOATING, DType


class Compressor:
    """The interface. A class with `wire` set leaves the conversion to the core, which does it while packing."""

    wire: ClassVar[DType | None] = None

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """A smaller tensor, and what `decompress` needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor as it was before `compress`, as far as the compression allows."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Leaves everything as it is."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


def is_identity(compression: Any) -> bool:
    return compression is NoneCompressor


def wire_of(compression: Any) -> DType | None:
    """The type the core converts to, or None when `compress` has to be called."""
    # Not getattr: a class derived by a user has its own `compress`, which the core does not know.
    wire: DType | None = vars(compression).get("wire")
    return wire


def wire_dtype(wire: DType | None, dtype: int) -> int:
    """The core's `wire_dtype` for a tensor: only the wide floating types have bits to spare."""
    return int(wire) if wire is not None and dtype in WIDE_FLOATING else AS_IT_IS
