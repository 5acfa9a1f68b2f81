"""Compression of gradients: none, 16-bit floats, to which the core converts while packing, or, for slow networks, much
less data (docs/compression.md).
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

import torch

from perseus_like.collectives.compression import Compressor, NoneCompressor
from perseus_like.tables import DType

from ..feedback import FeedbackCompressor
from .between_hosts import BetweenHosts
from .one_bit import OneBitCompressor
from .top_k import TopKCompressor


class _CastCompressor(Compressor):
    dtype: ClassVar[torch.dtype]

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        if not tensor.dtype.is_floating_point:
            return tensor, None
        return tensor.to(cls.dtype), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor if ctx is None else tensor.to(ctx)


class FP16Compressor(_CastCompressor):
    """Sends floating tensors as float16: half the bytes of float32, largest value 65504."""

    wire: ClassVar[DType | None] = DType.float16
    dtype = torch.float16


class BF16Compressor(_CastCompressor):
    """Sends floating tensors as bfloat16: half the bytes and the range of float32, three decimal digits."""

    wire: ClassVar[DType | None] = DType.bfloat16
    dtype = torch.bfloat16


class Compression:
    """The choices for `compression=`. Those below bf16 are for DistributedOptimizer, with their options or without:
    `Compression.top_k(ratio=0.02)`, `Compression.one_bit`.
    """

    none: TypeAlias = NoneCompressor
    fp16: TypeAlias = FP16Compressor
    bf16: TypeAlias = BF16Compressor
    top_k: TypeAlias = TopKCompressor
    one_bit: TypeAlias = OneBitCompressor
    between_hosts: TypeAlias = BetweenHosts  # between_hosts(Compression.top_k(ratio=0.02)): exact within a host


__all__ = [
    "BF16Compressor",
    "BetweenHosts",
    "Compression",
    "Compressor",
    "FP16Compressor",
    "FeedbackCompressor",
    "NoneCompressor",
    "OneBitCompressor",
    "TopKCompressor",
]
