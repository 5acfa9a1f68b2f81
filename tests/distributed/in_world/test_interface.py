"""The methods of groups and works beside collectives: each works, or is refused with a text."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist


def default_group() -> Any:
    return dist.distributed_c10d._get_default_group()


def test_gather_single(rank: int, size: int) -> None:
    """torch.distributed.gather_single is of torch 2.14; the group's method can be called with any release."""
    last = size - 1
    options = dist.GatherOptions()
    options.rootRank = last
    for tensor in (torch.full((2, 3), rank), torch.empty(0, dtype=torch.int64)):
        output = torch.empty(size * tensor.numel() if rank == last else 0, dtype=torch.int64)
        default_group().gather_single(output, tensor, options).wait()
        if rank == last:
            assert output.tolist() == [r for r in range(size) for _ in range(tensor.numel())]


def test_gather_single_into_too_little_room(rank: int, size: int) -> None:
    options = dist.GatherOptions()
    with pytest.raises(RuntimeError if rank else ValueError, match=f"{3 * size} elements come, but the output has"):
        default_group().gather_single(torch.empty(1), torch.ones(3), options).wait()


def test_a_pickled_group_is_the_group_of_its_name(rank: int, size: int) -> None:
    group: Any = dist.new_group(list(range(size)))
    for each in (group, default_group()):
        assert pickle.loads(pickle.dumps(each)) is each
        assert copy.deepcopy(each) is each
    data = pickle.dumps(group)
    name = group.group_name
    dist.destroy_process_group(group)
    with pytest.raises(LookupError, match=f"pickled process group '{name}' of ranks .* does not exist"):
        pickle.loads(data)


@pytest.mark.parametrize(
    ("method", "text"),
    [
        ("split_group", "new_group"),
        ("reconfigure", "elastic"),
        ("new_window", "send and recv"),
        ("register_pre_hook", "PERSEUS_TIMELINE"),
        ("_start_time_estimate", "PERSEUS_TIMELINE"),
    ],
)
def test_what_is_not_supported_is_refused_with_a_text(method: str, text: str) -> None:
    with pytest.raises(NotImplementedError, match=f"{method}: the backend 'perseus' does not support it.*{text}"):
        getattr(default_group(), method)([0])


def test_split_group_of_torch_refuses(rank: int, size: int) -> None:
    if not hasattr(dist, "split_group"):
        pytest.skip(f"torch {torch.__version__} has no split_group")
    with pytest.raises(RuntimeError, match=r"split"):
        dist.split_group(split_ranks=[list(range(size))])


def test_what_a_work_says_of_itself(rank: int, size: int) -> None:
    work: Any = dist.all_reduce(torch.ones(2), async_op=True)
    assert work.get_future_result().wait() == 0
    work.block_current_stream()
    following: Any = dist.all_reduce(torch.ones(2), async_op=True)
    following.wait()
    assert following._get_sequence_number() == work._get_sequence_number() + 1
    assert work.timeout > timedelta(minutes=1)
    with pytest.raises(NotImplementedError, match=r"_get_duration: .*PERSEUS_TIMELINE"):
        work._get_duration()


def test_a_failed_work_says_so_in_its_future_result(rank: int, size: int) -> None:
    work: Any = dist.all_reduce(torch.ones(2 + rank), async_op=True)
    assert work.get_future_result().wait() == 2
    with pytest.raises(RuntimeError):
        work.wait()


def test_a_barrier_has_a_limit_of_its_own(rank: int, size: int) -> None:
    options = dist.BarrierOptions()
    options.timeout = timedelta(milliseconds=200)
    if rank == 0:
        work = default_group().barrier(options)
        with pytest.raises(RuntimeError, match=r"barrier #\d+ timed out after a timeout of 0.2 s"):
            work.wait()
    dist.monitored_barrier()  # of messages, which are no collectives
    if rank:
        work = default_group().barrier(options)
    work.wait(timedelta(seconds=60))


def test_a_longer_timeout_for_a_while_is_not_given(caplog: pytest.LogCaptureFixture) -> None:
    default_group()._add_ephemeral_timeout(timedelta(seconds=1))
    assert "is not extended by 0:00:01" in caplog.text


def test_a_work_that_was_waited_for_lets_its_tensors_go(rank: int, size: int) -> None:
    tensor = torch.ones(2)
    work: Any = dist.all_reduce(tensor, async_op=True)
    gone = weakref.ref(tensor)
    work.get_future().wait()
    work.wait()
    del work, tensor
    gc.collect()
    assert gone() is None
