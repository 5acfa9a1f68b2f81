"""Tests of collectives that move data: every form, every dtype, and sizes that differ between ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from .values import ALL_TYPES, UNSIGNED, all_gather_single, of_rank, same


@pytest.mark.parametrize("dtype", ALL_TYPES, ids=str)
def test_every_type_moves(dtype: torch.dtype, rank: int, size: int) -> None:
    tensor = of_rank(rank, dtype=dtype)
    dist.broadcast(tensor, size - 1)
    assert same(tensor, of_rank(size - 1, dtype=dtype))
    outputs = [torch.empty(3, 5, dtype=dtype) for _ in range(size)]
    dist.all_gather(outputs, of_rank(rank, dtype=dtype))
    assert all(same(outputs[r], of_rank(r, dtype=dtype)) for r in range(size))
    joined = torch.empty(size * 15, dtype=dtype)
    all_gather_single(joined, of_rank(rank, dtype=dtype))
    assert same(joined, torch.cat([of_rank(r, dtype=dtype).flatten() for r in range(size)]))
    outputs = [torch.empty(15, dtype=dtype) for _ in range(size)]
    dist.all_to_all(outputs, [of_rank(10 * rank + r, dtype=dtype).flatten() for r in range(size)])
    assert all(same(outputs[r], of_rank(10 * r + rank, dtype=dtype).flatten()) for r in range(size))


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, *UNSIGNED[:1]], ids=str)
def test_gather_and_scatter(dtype: torch.dtype, rank: int, size: int) -> None:
    root = size - 1
    parts = [torch.empty(3, 5, dtype=dtype) for _ in range(size)] if rank == root else None
    dist.gather(of_rank(rank, dtype=dtype), parts, root)
    assert parts is None or all(same(parts[r], of_rank(r, dtype=dtype)) for r in range(size))
    output = torch.empty(5, 3, dtype=dtype).t()  # strided
    dist.scatter(output, [of_rank(100 + r, dtype=dtype) for r in range(size)] if rank == root else None, root)
    assert same(output, of_rank(100 + rank, dtype=dtype))


def test_empty_tensors(rank: int, size: int) -> None:
    empty: list[Any] = [torch.empty(0) for _ in range(size)]
    dist.all_gather(empty, torch.empty(0))
    dist.all_to_all(empty, [torch.empty(0) for _ in range(size)])
    dist.gather(torch.empty(0), empty if rank == 0 else None, 0)
    dist.scatter(torch.empty(0), empty if rank == 0 else None, 0)
    dist.broadcast(torch.empty(0), 0)
    dist.all_reduce(torch.empty(0))


def test_lists_of_different_sizes(rank: int, size: int) -> None:
    outputs = [torch.empty(r + 1, 2) for r in range(size)]
    dist.all_gather(outputs, of_rank(rank, (rank + 1, 2)))
    assert all(torch.equal(outputs[r], of_rank(r, (r + 1, 2))) for r in range(size))
    share = torch.empty(rank + 1)
    dist.reduce_scatter(share, [of_rank(10 * rank + r, (r + 1,)) for r in range(size)])
    assert torch.equal(share, torch.stack([of_rank(10 * r + rank, (rank + 1,)) for r in range(size)]).sum(0))


def test_all_to_all_with_splits(rank: int, size: int) -> None:
    """Rank r sends r + s rows to rank s."""
    sent = [rank + r for r in range(size)]
    rows = torch.cat([torch.full((rank + r, 2), 10.0 * rank + r) for r in range(size)])
    output = torch.empty(sum(sent), 2)
    dist.all_to_all_single(output, rows, sent, sent)
    assert torch.equal(output, torch.cat([torch.full((rank + r, 2), 10.0 * r + rank) for r in range(size)]))
    even = torch.empty(2 * size)
    dist.all_to_all_single(even, torch.arange(2.0 * size))
    assert torch.equal(even, torch.tensor([2.0 * rank, 2.0 * rank + 1] * size))


def test_objects(rank: int, size: int) -> None:
    mine = {"rank": rank, "text": "x" * (1 + 1000 * rank)}
    everybody: list[Any] = [None] * size
    dist.all_gather_object(everybody, mine)
    assert [each["rank"] for each in everybody] == list(range(size))
    gathered: list[Any] | None = [None] * size if rank == 0 else None
    dist.gather_object(mine, gathered, 0)
    assert gathered is None or gathered == everybody
    received: list[Any] = [None]
    dist.scatter_object_list(received, everybody if rank == 0 else None, 0)
    assert received == [mine]
    shared: list[Any] = [mine, None] if rank == size - 1 else [None, 1]
    dist.broadcast_object_list(shared, size - 1)
    assert shared == [everybody[-1], None]


def test_coalesced(size: int, rank: int) -> None:
    ones, twos = torch.ones(3), torch.full((2, 2), 2.0)
    dist.all_reduce_coalesced([ones, twos])
    assert ones[0] == size
    assert twos[0, 0] == 2 * size
    group: Any = dist.group.WORLD
    lists = [[torch.empty(2), torch.empty(3)] for _ in range(size)]
    group.allgather_coalesced(lists, [torch.full((2,), float(rank)), torch.full((3,), float(rank))]).wait()
    assert all(each.eq(r).all() for r in range(size) for each in lists[r])
    outputs, inputs = [torch.empty(2), torch.empty(1)], [torch.ones(2 * size), torch.ones(size)]
    group.reduce_scatter_tensor_coalesced(outputs, inputs).wait()
    assert torch.cat(outputs).tolist() == [size] * 3
