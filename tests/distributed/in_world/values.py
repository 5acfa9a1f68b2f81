"""What ranks give, known to all of them."""

from __future__ import annotations

import torch

FLOATING = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, *UNSIGNED]
COMPLEX = [torch.complex64, torch.complex128]
BYTE_FLOATS = [torch.float8_e4m3fn, torch.float8_e5m2]
ALL_TYPES = [*FLOATING, *INTEGERS, *COMPLEX, *BYTE_FLOATS, torch.bool]


def of_rank(rank: int, shape: tuple[int, ...] = (3, 5), dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small whole numbers, exact in every type."""
    numbers = torch.randint(1, 5, shape, generator=torch.Generator().manual_seed(1000 + rank))
    if dtype in COMPLEX:
        return torch.complex(numbers.double(), numbers.double() + rank).to(dtype)
    return numbers.to(dtype)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal bits; torch.equal does not know all types."""
    return one.contiguous().view(torch.uint8).equal(other.contiguous().view(torch.uint8))
