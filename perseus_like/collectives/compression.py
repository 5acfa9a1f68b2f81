"""Compression of gradients. An adapter derives classes for the tensors of its framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ..tables import DType
from ..tensor import AS_IT_IS, WIDE_FLOATING


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


class _ShownByName(type):
    """The class of NoneCompressor. Signatures show a default by its `repr`, which is the name that programs use."""

    def __repr__(cls) -> str:
        return "Compression.none" if cls is NoneCompressor else super().__repr__()


class NoneCompressor(Compressor, metaclass=_ShownByName):
    """Leaves the tensor unchanged."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


def wire_of(compression: Any) -> DType | None:
    """Returns the wire dtype to which the core converts, or None if it does not convert."""
    # Not getattr: a class derived by a user has its own `compress`, which the core does not know.
    wire: DType | None = vars(compression).get("wire")
    return wire


def is_called(compression: Any) -> bool:
    """Returns True if `compress` has to be called, because the core cannot do what it does."""
    return compression is not NoneCompressor and wire_of(compression) is None


class Compressed:
    """Tensors after the `compress` of a compression that `is_called`. They are what is communicated."""

    def __init__(self, compression: Any, tensors: Sequence[Any]) -> None:
        self._compression = compression
        pairs = [compression.compress(tensor) for tensor in tensors]
        self.tensors = [tensor for tensor, _ in pairs]
        self._contexts = [context for _, context in pairs]

    def restore(self, results: Sequence[Any]) -> list[Any]:
        """Returns the results of the communication after `decompress`."""
        pairs = zip(results, self._contexts, strict=True)
        return [self._compression.decompress(result, context) for result, context in pairs]


def wire_dtype(wire: DType | None, dtype: int) -> int:
    """Returns the core's `wire_dtype` for a tensor of `dtype`. Only float32 and float64 are converted."""
    return int(wire) if wire is not None and dtype in WIDE_FLOATING else AS_IT_IS
