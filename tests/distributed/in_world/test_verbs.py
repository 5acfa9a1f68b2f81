"""Checks reductions of every form and every dtype against NumPy in one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from .values import BYTE_FLOATS, COMPLEX, FLOATING, INTEGERS, UNSIGNED, of_rank, reduce_scatter_single, same

premultiplied: Any = vars(dist)["_make_nccl_premul_sum"]
_OPS: dict[str, Any] = {"SUM": np.sum, "AVG": np.mean, "MIN": np.min, "MAX": np.max, "PRODUCT": np.prod}


def expected(op: str, dtype: torch.dtype, ranks: range, **options: Any) -> torch.Tensor:
    every = np.stack([of_rank(rank, dtype=dtype, **options).to(torch.float64).numpy() for rank in ranks])
    found = torch.from_numpy(np.asarray(_OPS[op](every, axis=0)))
    return (found.trunc() if dtype in INTEGERS else found).to(dtype)


@pytest.mark.parametrize("dtype", [*FLOATING, *INTEGERS, *BYTE_FLOATS], ids=str)
@pytest.mark.parametrize("op", list(_OPS))
def test_all_reduce(op: str, dtype: torch.dtype, rank: int, size: int) -> None:
    tensor = of_rank(rank, dtype=dtype)
    dist.all_reduce(tensor, op=getattr(ReduceOp, op))
    torch.testing.assert_close(tensor.to(torch.float64), expected(op, dtype, range(size)).to(torch.float64))


@pytest.mark.parametrize("dtype", UNSIGNED, ids=str)
def test_numbers_with_the_first_bit_set(dtype: torch.dtype, rank: int, size: int) -> None:
    """Large unsigned numbers are reduced as unsigned numbers, although a signed dtype would read them as negative."""
    most = torch.iinfo(dtype).max

    def reduced(op: Any) -> int:
        tensor = torch.tensor([most - rank], dtype=dtype)
        dist.all_reduce(tensor, op=op)
        return int(tensor.item())

    assert reduced(ReduceOp.MAX) == most
    assert reduced(ReduceOp.MIN) == most - (size - 1)
    assert reduced(ReduceOp.SUM) == (size * most - sum(range(size))) % (most + 1)


@pytest.mark.parametrize("op", ["BAND", "BOR", "BXOR"])
def test_bitwise(op: str, rank: int, size: int) -> None:
    tensor = of_rank(rank, dtype=torch.int32)
    dist.all_reduce(tensor, op=getattr(ReduceOp, op))
    whole = of_rank(0, dtype=torch.int32)
    for r in range(1, size):
        other = of_rank(r, dtype=torch.int32)
        whole = {"BAND": whole & other, "BOR": whole | other, "BXOR": whole ^ other}[op]
    assert torch.equal(tensor, whole)


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_complex(dtype: torch.dtype, rank: int, size: int) -> None:
    every = torch.stack([of_rank(r, dtype=dtype) for r in range(size)])
    for op, whole in ((ReduceOp.SUM, every.sum(0)), (ReduceOp.AVG, every.mean(0))):
        tensor = of_rank(rank, dtype=dtype)
        dist.all_reduce(tensor, op=op)
        torch.testing.assert_close(tensor, whole)
    with pytest.raises((ValueError, RuntimeError), match="MAX"):
        dist.all_reduce(of_rank(rank, dtype=dtype), op=ReduceOp.MAX)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, *UNSIGNED[::2]], ids=str)
def test_premultiplied_sum(dtype: torch.dtype, rank: int, size: int) -> None:
    """The product of an integer and the factor loses its fraction before the sum."""
    for factor in (1.5, 0.75):
        tensor = of_rank(rank, dtype=dtype)
        dist.all_reduce(tensor, op=premultiplied(factor))
        parts = torch.stack([of_rank(r, dtype=dtype).double() * factor for r in range(size)])
        whole = (parts if dtype.is_floating_point else parts.trunc()).sum(0)
        torch.testing.assert_close(tensor.double(), whole)


@pytest.mark.parametrize("dtype", [torch.float32, *UNSIGNED[1:2], torch.float8_e5m2, torch.complex64], ids=str)
def test_reduce_changes_the_roots_tensor_only(dtype: torch.dtype, rank: int, size: int) -> None:
    root = size - 1
    tensor = of_rank(rank, dtype=dtype)
    dist.reduce(tensor, root, op=ReduceOp.AVG)
    if rank != root:
        assert same(tensor, of_rank(rank, dtype=dtype))
    elif dtype in COMPLEX:
        torch.testing.assert_close(tensor, torch.stack([of_rank(r, dtype=dtype) for r in range(size)]).mean(0))
    else:
        torch.testing.assert_close(tensor.double(), expected("AVG", dtype, range(size)).double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, *UNSIGNED[::2]], ids=str)
@pytest.mark.parametrize("op", ["SUM", "AVG", "MAX"])
def test_reduce_scatter(op: str, dtype: torch.dtype, rank: int, size: int) -> None:
    output = torch.empty(2, 5, dtype=dtype)
    reduce_scatter_single(output, of_rank(rank, (2 * size, 5), dtype), op=getattr(ReduceOp, op))
    whole = expected(op, dtype, range(size), shape=(2 * size, 5))
    torch.testing.assert_close(output.double(), whole[2 * rank : 2 * rank + 2].double())


def test_sparse(rank: int, size: int) -> None:
    tensor = torch.sparse_coo_tensor(torch.tensor([[rank, size]]), torch.tensor([1.0, 2.0]), (size + 1,))
    dist.all_reduce(tensor)
    assert tensor.to_dense().tolist() == [1.0] * size + [2.0 * size]


def test_groups_overlap(rank: int, size: int) -> None:
    groups = [dist.new_group(list(range(first, size))) for first in range(size)]
    for first in range(rank + 1):
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=groups[first])
        assert tensor.item() == size - first
    for group in groups[: rank + 1]:
        dist.barrier(group=group)
        dist.destroy_process_group(group)
