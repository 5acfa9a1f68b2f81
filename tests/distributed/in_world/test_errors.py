"""Ranks that disagree, or do not come: the same text on all of them, and the group or the world goes on."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist


def same_on_all(error: BaseException) -> None:
    texts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(texts, str(error))
    assert len(set(texts)) == 1, texts


def test_sizes(rank: int) -> None:
    with pytest.raises(RuntimeError, match=r"rank 0 has float32\[3\]") as raised:
        dist.all_reduce(torch.ones(3 if rank == 0 else 4))
    same_on_all(raised.value)


def test_shapes_may_differ(rank: int, size: int) -> None:
    tensor = torch.ones((2, 3) if rank == 0 else (6,))
    dist.all_reduce(tensor)
    assert tensor.sum() == 6 * size


def test_dtypes(rank: int) -> None:
    with pytest.raises(RuntimeError, match=r"rank 0 has float16\[3\]") as raised:
        dist.broadcast(torch.ones(3, dtype=torch.float16 if rank == 0 else torch.int64), 0)
    same_on_all(raised.value)


def test_operations(rank: int) -> None:
    op = dist.ReduceOp.MAX if rank == 0 else dist.ReduceOp.SUM
    with pytest.raises(RuntimeError, match="rank 0 asks for op max") as raised:
        dist.all_reduce(torch.ones(3), op=op)
    same_on_all(raised.value)


def test_collectives(rank: int, size: int) -> None:
    outputs = [torch.empty(3) for _ in range(size)]
    call = dist.all_reduce if rank == 0 else functools.partial(dist.all_gather, outputs)
    with pytest.raises(RuntimeError, match="rank 0 calls allreduce") as raised:
        call(torch.ones(3))
    same_on_all(raised.value)


def test_roots(rank: int) -> None:
    with pytest.raises(RuntimeError, match="rank 0 asks for root 0") as raised:
        dist.broadcast(torch.ones(3), 0 if rank == 0 else 1)
    same_on_all(raised.value)


def test_outputs_that_do_not_fit(size: int) -> None:
    with pytest.raises(
        ValueError, match=f"{3 * size} elements came, but the outputs have room for {4 * size}"
    ) as raised:
        dist.all_gather([torch.empty(4) for _ in range(size)], torch.ones(3))
    same_on_all(raised.value)


def test_what_is_not_defined_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match=r"BAND is not defined on torch\.float32"):
        dist.all_reduce(torch.ones(3), op=dist.ReduceOp.BAND)
    with pytest.raises(ValueError, match="on meta are not supported"):
        dist.all_reduce(torch.ones(3, device="meta"))
    dist.all_reduce(torch.ones(3))


def test_a_timeout_names_the_collective_and_who_is_missing(rank: int, size: int) -> None:
    group = dist.new_group(list(range(size)), timeout=timedelta(seconds=0.5))
    last = size - 1
    if rank != last:
        with pytest.raises(RuntimeError, match=rf"allreduce '#0' has waited .* not by rank {last}\."):
            dist.all_reduce(torch.ones(1), group=group)
    dist.barrier()
    if rank == last:
        with pytest.raises(RuntimeError, match=f"not by rank {last}"):
            dist.all_reduce(torch.ones(1), group=group)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == size
    dist.destroy_process_group(group)


def test_abort_ends_what_the_others_wait_for(rank: int, size: int) -> None:
    group = dist.new_group(list(range(size)))
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=group)
    if rank == 0:
        dist.distributed_c10d._abort_process_group(group)
    else:
        with pytest.raises(RuntimeError, match="rank 0 has left"):
            dist.all_reduce(tensor, group=group)
        dist.destroy_process_group(group)
    dist.barrier()
