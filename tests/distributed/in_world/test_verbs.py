"""Every collective in every form, against the same in one process."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

FLOATING = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
OTHERS = [torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn]


def of_rank(rank: int, shape: tuple[int, ...] = (3, 5), dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """What a rank gives, known to all."""
    numbers = torch.randint(1, 5, shape, generator=torch.Generator().manual_seed(1000 + rank))
    if dtype in (torch.complex64, torch.complex128):
        return torch.complex(numbers.double(), numbers.double() + rank).to(dtype)
    return numbers.to(dtype)


@pytest.mark.parametrize("dtype", [*FLOATING, *INTEGERS], ids=str)
@pytest.mark.parametrize("op", ["SUM", "AVG", "MIN", "MAX", "PRODUCT"])
def test_all_reduce(op: str, dtype: torch.dtype, rank: int, size: int) -> None:
    tensor = of_rank(rank, dtype=dtype)
    dist.all_reduce(tensor, op=getattr(ReduceOp, op))
    every = torch.stack([of_rank(r, dtype=dtype).double() for r in range(size)])
    expected = {
        "SUM": every.sum(0),
        "AVG": every.mean(0),
        "MIN": every.amin(0),
        "MAX": every.amax(0),
        "PRODUCT": every.prod(0),
    }[op]
    if dtype in INTEGERS:
        expected = expected.trunc()
    torch.testing.assert_close(tensor, expected.to(dtype))


@pytest.mark.parametrize("op", ["BAND", "BOR", "BXOR"])
def test_bitwise(op: str, rank: int, size: int) -> None:
    tensor = of_rank(rank, dtype=torch.int32)
    dist.all_reduce(tensor, op=getattr(ReduceOp, op))
    expected = of_rank(0, dtype=torch.int32)
    for r in range(1, size):
        other = of_rank(r, dtype=torch.int32)
        expected = {"BAND": expected & other, "BOR": expected | other, "BXOR": expected ^ other}[op]
    assert torch.equal(tensor, expected)


def test_broadcast_and_gathers(rank: int, size: int) -> None:
    tensor = of_rank(rank)
    dist.broadcast(tensor, size - 1)
    assert torch.equal(tensor, of_rank(size - 1))
    outputs = [torch.empty(3, 5) for _ in range(size)]
    dist.all_gather(outputs, of_rank(rank))
    assert all(torch.equal(outputs[r], of_rank(r)) for r in range(size))
    joined = torch.empty(size * 15)
    dist.all_gather_single(joined, of_rank(rank))
    assert torch.equal(joined, torch.cat([of_rank(r).flatten() for r in range(size)]))


def test_reduce_scatter(rank: int, size: int) -> None:
    output = torch.empty(2, 5)
    dist.reduce_scatter_single(output, of_rank(rank, (2 * size, 5)))
    total = torch.stack([of_rank(r, (2 * size, 5)) for r in range(size)]).sum(0)
    assert torch.equal(output, total[2 * rank : 2 * rank + 2])


def test_groups_overlap(rank: int, size: int) -> None:
    groups = [dist.new_group(list(range(first, size))) for first in range(size)]
    for first in range(rank + 1):
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=groups[first])
        assert tensor.item() == size - first
    for group in groups[: rank + 1]:
        dist.barrier(group=group)
        dist.destroy_process_group(group)
