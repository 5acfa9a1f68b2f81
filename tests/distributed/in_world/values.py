"""Computes the inputs of any rank, so that every rank can compute the expected results."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

FLOATING = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
# torch has these dtypes since release 2.3.
UNSIGNED = [getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, *UNSIGNED]
COMPLEX = [torch.complex64, torch.complex128]
# torch before 2.3 cannot copy some of these dtypes.
BYTE_FLOATS = [torch.float8_e4m3fn, torch.float8_e5m2] if UNSIGNED else []
ALL_TYPES = [*FLOATING, *INTEGERS, *COMPLEX, *BYTE_FLOATS, torch.bool]


def of_rank(rank: int, shape: tuple[int, ...] = (3, 5), dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Returns a rank's input. Its small whole numbers are exact in every dtype."""
    numbers = torch.randint(1, 5, shape, generator=torch.Generator().manual_seed(1000 + rank))
    if dtype in COMPLEX:
        return torch.complex(numbers.double(), numbers.double() + rank).to(dtype)
    return numbers.to(dtype)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns True if the bits of both tensors are equal. torch.equal does not support all dtypes."""
    return one.contiguous().view(torch.uint8).equal(other.contiguous().view(torch.uint8))


# These functions have their new names since torch 2.13.
all_gather_single: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
