"""How gradients travel: as they are, or as 16-bit floats, into which the core converts while packing."""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

import numpy as np

from perseus_like.compression import Compressor, NoneCompressor
from perseus_like.tensor import DType


class FP16Compressor(Compressor):
    """Floating arrays as float16: half the bytes of float32, largest value 65504."""

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
    """Floating arrays as bfloat16: half the bytes and the range of float32, three decimal digits."""

    # MXNet's own bfloat16 is for oneDNN's operators: only the core converts.
    wire: ClassVar[DType | None] = DType.bfloat16


class Compression:
    """The choices for `compression=`."""

    none: TypeAlias = NoneCompressor
    fp16: TypeAlias = FP16Compressor
    bf16: TypeAlias = BF16Compressor


__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]
