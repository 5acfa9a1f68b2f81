"""Compression of gradients for communication: none, or 16-bit floats, which the core converts to while packing."""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

import numpy as np

from perseus_like.collectives.compression import Compressor, NoneCompressor
from perseus_like.tables import DType


class FP16Compressor(Compressor):
    """Sends floating arrays as float16: half the bytes of float32, largest value 65504."""

    wire: ClassVar[DType | None] = DType.float16

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        if not np.issubdtype(tensor.dtype, np.floating):
            return tensor, None
        return tensor.astype(np.float16, copy=False), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else tensor.astype(ctx, copy=False)


class BF16Compressor(NoneCompressor):
    """Sends floating arrays as bfloat16: half the bytes and the range of float32, three decimal digits."""

    # Only the core converts: few of MXNet's operators work on its bfloat16, which is for oneDNN.
    wire: ClassVar[DType | None] = DType.bfloat16


class Compression:
    """The choices for `compression=`."""

    none: TypeAlias = NoneCompressor
    fp16: TypeAlias = FP16Compressor
    bf16: TypeAlias = BF16Compressor


__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]
