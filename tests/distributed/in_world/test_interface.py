"""Checks the methods of groups and works that are no collectives: each one works or raises an error that says why."""

from __future__ import annotations

import copy
import gc
import pickle
import time
import weakref
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist


def default_group() -> Any:
    return dist.distributed_c10d._get_default_group()


def test_gather_single(rank: int, size: int) -> None:
    """The group's method can be called with any release; torch.distributed.gather_single is new in torch 2.14."""
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
def test_unsupported_methods_raise_an_error_that_names_an_alternative(method: str, text: str) -> None:
    with pytest.raises(NotImplementedError, match=f"{method}: the backend 'perseus' does not support it.*{text}"):
        getattr(default_group(), method)([0])


def test_split_group_of_torch_refuses(rank: int, size: int) -> None:
    if not hasattr(dist, "split_group"):
        pytest.skip(f"torch {torch.__version__} has no split_group")
    with pytest.raises(RuntimeError, match=r"split"):
        dist.split_group(split_ranks=[list(range(size))])


def test_attributes_of_a_work(rank: int, size: int) -> None:
    work: Any = dist.all_reduce(torch.ones(2), async_op=True)
    assert work.get_future_result().wait() == 0
    work.block_current_stream()
    following: Any = dist.all_reduce(torch.ones(2), async_op=True)
    following.wait()
    assert following._get_sequence_number() == work._get_sequence_number() + 1
    assert work.timeout > timedelta(minutes=1)
    with pytest.raises(NotImplementedError, match=r"_get_duration: .*PERSEUS_TIMELINE"):
        work._get_duration()


def test_the_future_result_of_a_failed_work(rank: int, size: int) -> None:
    work: Any = dist.all_reduce(torch.ones(2 + rank), async_op=True)
    assert work.get_future_result().wait() == 2
    with pytest.raises(RuntimeError):
        work.wait()


def test_a_barrier_can_have_its_own_timeout(rank: int, size: int) -> None:
    options = dist.BarrierOptions()
    options.timeout = timedelta(milliseconds=200)
    if rank == 0:
        work = default_group().barrier(options)
        with pytest.raises(RuntimeError, match=r"barrier #\d+ timed out after a timeout of 0.2 s"):
            work.wait()
    dist.monitored_barrier()  # consists of messages, which are no collectives
    if rank:
        work = default_group().barrier(options)
    work.wait(timedelta(seconds=60))


def test_a_temporary_timeout_extension_is_refused_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    default_group()._add_ephemeral_timeout(timedelta(seconds=1))
    assert "is not extended by 0:00:01" in caplog.text


def test_a_complete_work_releases_its_tensors(rank: int, size: int) -> None:
    tensor = torch.ones(2)
    work: Any = dist.all_reduce(tensor, async_op=True)
    gone = weakref.ref(tensor)
    work.get_future().wait()
    work.wait()
    del work, tensor
    deadline = time.monotonic() + 30
    while gone() is not None and time.monotonic() < deadline:  # the thread that completes futures may still have it
        gc.collect()
    assert gone() is None
