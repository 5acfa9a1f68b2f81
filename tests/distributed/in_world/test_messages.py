"""Tests of messages between two ranks: order, tags, any source, batches and errors."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist


def filled(value: float, count: int = 4) -> torch.Tensor:
    return torch.full((count,), float(value))


@pytest.mark.parametrize("count", [0, 1, 1000, 5000, 1 << 20, 5 << 20])
def test_all_send_before_they_receive(count: int, rank: int, size: int) -> None:
    dist.send(filled(rank, count), (rank + 1) % size)
    tensor = torch.empty(count)
    previous = (rank - 1) % size
    assert dist.recv(tensor, previous) == previous
    assert torch.equal(tensor, filled(previous, count))


def test_any_source(rank: int, size: int) -> None:
    if rank != 0:
        dist.send(filled(rank), 0, tag=7)
        return
    senders = set()
    for _ in range(size - 1):
        tensor = filled(-1)
        sender = dist.recv(tensor, tag=7)
        assert torch.equal(tensor, filled(sender))
        senders.add(sender)
    assert senders == set(range(1, size))


def test_tags_in_any_order(rank: int) -> None:
    if rank == 0:
        for tag in (5, 6, 5):
            dist.send(filled(tag), 1, tag=tag)
    if rank == 1:
        for tag in (6, 5, 5):
            tensor = filled(0)
            dist.recv(tensor, 0, tag=tag)
            assert torch.equal(tensor, filled(tag))


def test_batch(rank: int, size: int) -> None:
    after, before = (rank + 1) % size, (rank - 1) % size
    results = [filled(-1), filled(-1)]
    operations = [dist.P2POp(dist.irecv, result, before) for result in results]
    operations += [dist.P2POp(dist.isend, filled(10 * rank + i), after) for i in range(2)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert [result[0].item() for result in results] == [10 * before, 10 * before + 1]


def test_batch_in_a_coalescing_manager(rank: int, size: int) -> None:
    """torch 2.1 sends batches of CUDA tensors in this way."""
    result = filled(-1, count=1 << 20)
    with dist.distributed_c10d._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        dist.irecv(result, (rank - 1) % size)
        dist.isend(filled(rank, count=1 << 20), (rank + 1) % size)
    manager.wait()
    assert torch.equal(result, filled((rank - 1) % size, count=1 << 20))


def test_strided_and_other_types(rank: int) -> None:
    wide = torch.arange(12).to(torch.complex64).view(3, 4)
    if rank == 0:
        dist.send(wide.t(), 1)
    if rank == 1:
        target = torch.zeros(4, 3, dtype=torch.complex64)
        dist.recv(target, 0)
        assert torch.equal(target, wide.t())


def test_messages_in_a_group_use_the_ranks_of_the_group(rank: int, size: int) -> None:
    group = dist.new_group([0, size - 1])
    if rank == 0:
        dist.send(filled(3), size - 1, group=group)
    if rank == size - 1:
        tensor = filled(0)
        assert dist.recv(tensor, 0, group=group) == 0
        assert torch.equal(tensor, filled(3))


def test_a_receive_without_a_send_times_out(rank: int, size: int) -> None:
    if rank == 0:
        work = dist.irecv(filled(0), 1, tag=99)
        assert work is not None
        with pytest.raises(RuntimeError, match="recv from rank 1 with tag 99"):
            work.wait(timedelta(milliseconds=50))
    dist.barrier()
    if rank == 1:
        dist.send(filled(0), 0, tag=99)  # the receive is still there


def test_monitored_barrier_names_the_missing_rank(rank: int, size: int) -> None:
    dist.monitored_barrier()
    last = size - 1
    group = dist.new_group([0, last])  # two ranks, because a third one might also exceed the limit
    if rank == last:
        dist.barrier()
    if rank in (0, last):
        # The last rank gets the error at once, because rank 0 has timed out before.
        limit = timedelta(seconds=0.2 if rank == 0 else 60)
        text = "Rank 0 timed out in monitoredBarrier after 200 ms: Rank 1 failed to pass monitoredBarrier in 200 ms"
        with pytest.raises(RuntimeError, match=text):
            dist.monitored_barrier(group, limit)
    if rank != last:
        dist.barrier()


def test_monitored_barrier_names_rank_0_and_fails_on_it_too(rank: int, size: int) -> None:
    last = size - 1
    group = dist.new_group([0, last])
    if rank == 0:
        dist.barrier()
    if rank in (0, last):
        limit = timedelta(seconds=0.2 if rank == last else 60)
        text = (
            "Rank 1 timed out in monitoredBarrier after 200 ms: Rank 0 failed to pass monitoredBarrier in 200 ms"
            if rank == last
            else "Rank 0 failed to pass monitoredBarrier in time: rank 1 timed out before"
        )
        with pytest.raises(RuntimeError, match=text):
            dist.monitored_barrier(group, limit)
    if rank != 0:
        dist.barrier()
