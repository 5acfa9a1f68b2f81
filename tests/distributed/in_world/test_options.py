"""Tests of what torch's callers give a group beside tensors of its own kind: time limits, roots, unusual tensors."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

c10d: Any = _distributed_c10d
LIMIT = timedelta(milliseconds=200)


def group() -> Any:
    return dist.group.WORLD


def with_limit(options: Any) -> Any:
    options.timeout = LIMIT
    return options


VERBS: dict[str, Callable[[int], Any]] = {
    "allreduce": lambda size: group().allreduce([torch.ones(3)], with_limit(c10d.AllreduceOptions())),
    "allreduce, limit": lambda size: group().allreduce([torch.ones(3)], timeout=LIMIT),
    "broadcast": lambda size: group().broadcast([torch.ones(3)], with_limit(c10d.BroadcastOptions())),
    "broadcast, limit": lambda size: group().broadcast([torch.ones(3)], 0, LIMIT),
    "reduce": lambda size: group().reduce([torch.ones(3)], with_limit(c10d.ReduceOptions())),
    "allgather": lambda size: group().allgather(
        [[torch.ones(3)] * size], [torch.ones(3)], with_limit(c10d.AllgatherOptions())
    ),
    "reduce_scatter": lambda size: group().reduce_scatter(
        [torch.ones(3)], [[torch.ones(3)] * size], with_limit(c10d.ReduceScatterOptions())
    ),
    "alltoall_base": lambda size: group().alltoall_base(
        torch.ones(size), torch.ones(size), [], [], with_limit(c10d.AllToAllOptions())
    ),
    "barrier": lambda size: group().barrier(with_limit(c10d.BarrierOptions())),
}


@pytest.mark.parametrize("verb", VERBS)
def test_the_time_limit_of_a_call(verb: str, rank: int, size: int) -> None:
    token = torch.zeros(1)
    if rank == size - 1:
        for _ in range(size - 1):
            dist.recv(token)
        VERBS[verb](size).wait(timedelta(seconds=60))
        return
    work = VERBS[verb](size)
    with pytest.raises(RuntimeError, match=r"timed out after a timeout of 0\.2 s"):
        work.wait()
    dist.send(token, size - 1)
    work.wait(timedelta(seconds=60))


def test_no_limit_of_a_call_is_the_groups(size: int) -> None:
    tensor = torch.ones(3)
    options: Any = c10d.AllreduceOptions()
    for limit in (timedelta(0), timedelta(days=100_000)):
        options.timeout = limit
        group().allreduce([tensor], options).wait()
    assert tensor.tolist() == [size * size] * 3


def test_a_root_as_a_number(rank: int, size: int) -> None:
    tensor = torch.full((2,), float(rank))
    group().broadcast([tensor], size - 1).wait()
    assert tensor.tolist() == [size - 1] * 2
    tensor = torch.full((2,), float(rank))
    group().reduce([tensor], size - 1, dist.ReduceOp.SUM).wait()
    assert tensor.tolist() == [sum(range(size)) if rank == size - 1 else rank] * 2
    group().gather([[tensor.clone() for _ in range(size)]] if rank == size - 1 else [], [tensor], root=size - 1).wait()


@pytest.mark.parametrize("how", ["wait", "future"])
def test_work_that_begins_in_inference_mode_and_ends_outside(how: str, rank: int, size: int) -> None:
    """The tensors are copied at the end: they are not contiguous, or outputs of other calls."""
    with torch.inference_mode():
        tensor = torch.full((2, 3), float(rank)).t()
        parts = [torch.zeros(2) for _ in range(size)]
        whole = torch.zeros(2 * size)[::2]
        works = [
            dist.all_reduce(tensor, async_op=True),
            dist.all_gather(parts, torch.full((2,), float(rank)), async_op=True),
            dist.all_to_all_single(whole, torch.full((size,), float(rank)), async_op=True),
        ]
    for work in works:
        assert work is not None
        work.wait() if how == "wait" else work.get_future().wait()
    assert set(tensor.flatten().tolist()) == {sum(range(size))}
    assert [part.tolist() for part in parts] == [[each] * 2 for each in range(size)]
    assert whole.tolist() == list(range(size))


def test_a_tensor_of_inference_mode_outside_of_it(rank: int, size: int) -> None:
    with torch.inference_mode():
        tensor = torch.full((2, 3), float(rank)).t()
    dist.all_reduce(tensor)
    assert set(tensor.flatten().tolist()) == {sum(range(size))}


def test_expanded_tensors(rank: int, size: int) -> None:
    tensor = torch.full((1, 3), float(rank)).expand(4, 3)
    dist.all_reduce(tensor)
    assert set(tensor.flatten().tolist()) == {sum(range(size))}
    tensor = torch.full((), float(rank)).expand(4)
    dist.broadcast(tensor, size - 1)
    assert set(tensor.tolist()) == {size - 1}
    received = [torch.zeros(1).expand(4) for _ in range(size)]
    dist.all_gather(received, torch.full((1,), float(rank)).expand(4))
    assert [set(each.tolist()) for each in received] == [{rank} for rank in range(size)]


def test_an_expanded_tensor_that_would_get_different_values() -> None:
    tensor = torch.zeros(1).expand(4)
    if dist.get_rank() == 0:
        tensor = torch.arange(4.0)
        dist.broadcast(tensor, 0)
        return
    with pytest.raises(ValueError, match=r"different values along dimension 0 .*pass a clone\(\)"):
        dist.broadcast(tensor, 0)


def test_options_by_torchs_names(rank: int, size: int) -> None:
    """The other forms of torch's methods: `op`, and one tensor in place of a list of lists."""
    last, whole = size - 1, [torch.tensor([float(part), part + 10.0]) for part in range(size)]
    for tensors in (torch.tensor([float(rank)]), [torch.tensor([float(rank)])]):
        group().allreduce(tensors, op=dist.ReduceOp.MAX).wait()
        assert tensors[0] == last
    output = torch.zeros(2)
    group().reduce_scatter(output, [part * (rank + 1) for part in whole], op=dist.ReduceOp.MAX).wait()
    assert output.tolist() == (whole[rank] * size).tolist()
    for root in (0, last):
        output = torch.zeros(2)
        group().scatter(output, whole if rank == root else [], root).wait()
        assert output.tolist() == whole[rank].tolist()
        outputs = [torch.zeros(2) for _ in range(size)] if rank == root else []
        group().gather(outputs, whole[rank], root).wait()
        assert [each.tolist() for each in outputs] == [each.tolist() for each in (whole if rank == root else [])]


def test_a_limit_that_is_no_time_fails_before_the_call(rank: int, size: int) -> None:
    """All ranks get the error under the number of this call, so the next one is right."""
    with pytest.raises(TypeError if rank == 0 else RuntimeError):
        group().allreduce(torch.ones(1), timeout=30 if rank == 0 else LIMIT).wait(timedelta(seconds=60))
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [size]
