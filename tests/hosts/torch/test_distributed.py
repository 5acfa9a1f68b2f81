"""Tests of torch.distributed on two hosts: messages between any two ranks, and errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.job import needs, succeeded

from ..conftest import OnHosts, TestBeds

needs("torch")

PROGRAM = """
    from datetime import timedelta
    import torch
    import torch.distributed as dist
    if not hasattr(dist.Backend, "PERSEUS"):  # torch before 2.5 does not load the backend by itself
        import perseus_like.torch.distributed

    dist.init_process_group("perseus")
    rank, size = dist.get_rank(), dist.get_world_size()

    def filled(value, count):
        return torch.full((count,), float(value))

    # Every pair of ranks exchanges small and large messages. All ranks send before they receive.
    for count in (0, 3, 5000, 300_000):
        for other in range(size):
            if other != rank:
                dist.send(filled(10 * rank + other, count), other, tag=count)
        for other in range(size):
            if other != rank:
                found = torch.empty(count)
                assert dist.recv(found, other, tag=count) == other
                assert torch.equal(found, filled(10 * other + rank, count))
    report("pairs")

    if rank == 0:
        senders = set()
        for _ in range(size - 1):
            found = torch.empty(1000)
            sender = dist.recv(found, tag=7)
            assert torch.equal(found, filled(sender, 1000))
            senders.add(sender)
        assert senders == set(range(1, size))
    else:
        dist.send(filled(rank, 1000), 0, tag=7)
    operations = [dist.P2POp(dist.isend, filled(rank, 20_000), (rank + 1) % size)]
    found = torch.empty(20_000)
    operations.append(dist.P2POp(dist.irecv, found, (rank - 1) % size))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert torch.equal(found, filled((rank - 1) % size, 20_000))
    report("any source and batches")

    last = size - 1
    pair = dist.new_group([0, last])
    misfit = f"rank 0 sent 3 float32, rank {last} has room for 4 float32"
    if rank == 0:
        dist.send(filled(0, 3), last, group=pair)
    if rank == last:
        try:
            dist.recv(filled(0, 4), 0, group=pair)
        except RuntimeError as error:
            assert misfit in str(error), error
            report("misfit")
    if rank == 0:
        try:  # the error of the last rank ends the wait
            dist.recv(filled(0, 1), last, group=pair, tag=9)
            report("no error")
        except RuntimeError as error:
            assert misfit in str(error), error
            report("misfit")
    dist.barrier()

    others = dist.new_group(list(range(last)))
    if rank != last:
        work = dist.all_reduce(torch.ones(1), async_op=True)
        dist.barrier(group=others)  # all of these ranks have started the allreduce now
        try:
            work.wait(timedelta(seconds=0.3))
        except RuntimeError as error:
            assert f"rank {last} of the job did not call it" in str(error), error
            report("named")
        dist.send(filled(0, 1), last, tag=11)
    else:
        for other in range(last):
            dist.recv(filled(0, 1), other, tag=11)
        work = dist.all_reduce(torch.ones(1), async_op=True)
    work.wait()
    try:
        dist.reduce(torch.ones(2), 0) if rank == 0 else dist.all_reduce(torch.ones(2))
    except RuntimeError as error:
        assert "rank 0 calls reduce to rank 0" in str(error), error
        report("distinguished")
    dist.destroy_process_group()
    report("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [[1, 1], [2, 2]], ids=str)
def test_messages_and_errors(test_beds: TestBeds, on_hosts: OnHosts, tmp_path: Path, ranks: list[int]) -> None:
    test_bed = test_beds(2)
    succeeded(on_hosts(test_bed, PROGRAM, ranks))
    size = sum(ranks)
    for rank in range(size):
        lines = (tmp_path / f"rank{rank}.txt").read_text().splitlines()
        expected = ["pairs", "any source and batches"]
        expected += ["misfit"] if rank in (0, size - 1) else []
        expected += ["named"] if rank != size - 1 else []
        assert lines == [*expected, "distinguished", "done"]
