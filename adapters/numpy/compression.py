"""Compression of arrays for communication: none, or 16-bit floats, which the core converts to while packing."""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

import numpy as np

from perseus_like.collectives.compression import Compressor, NoneCompressor
from perseus_like.tables import DType


class FP16Compressor(Compressor):
    """Sends floating arrays as float16."""

    wire: ClassVar[DType | None] = DType.float16

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return (tensor.astype(np.float16), tensor.dtype) if tensor.dtype.kind == "f" else (tensor, None)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else tensor.astype(ctx)


class BF16Compressor(NoneCompressor):
    """Sends floating arrays as bfloat16. NumPy has no such dtype, so only the core converts."""

    wire: ClassVar[DType | None] = DType.bfloat16


class Compression:
    """The choices for `compression=`."""

    none: TypeAlias = NoneCompressor
    fp16: TypeAlias = FP16Compressor
    bf16: TypeAlias = BF16Compressor
