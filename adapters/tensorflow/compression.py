"""Compression of gradients for communication: none, or 16-bit floats, which the core converts to while packing."""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

import tensorflow as tf

from perseus_like.collectives.compression import Compressor, NoneCompressor
from perseus_like.tables import DType


class _CastCompressor(Compressor):
    dtype: ClassVar[Any]

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        if not tensor.dtype.is_floating:
            return tensor, None
        return tf.cast(tensor, cls.dtype), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else tf.cast(tensor, ctx)


class FP16Compressor(_CastCompressor):
    """Sends floating tensors as float16: half the bytes of float32, largest value 65504."""

    wire: ClassVar[DType | None] = DType.float16
    dtype = tf.float16


class BF16Compressor(_CastCompressor):
    """Sends floating tensors as bfloat16: half the bytes and the range of float32, three decimal digits."""

    wire: ClassVar[DType | None] = DType.bfloat16
    dtype = tf.bfloat16


class Compression:
    """The choices for `compression=`."""

    none: TypeAlias = NoneCompressor
    fp16: TypeAlias = FP16Compressor
    bf16: TypeAlias = BF16Compressor


__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]
