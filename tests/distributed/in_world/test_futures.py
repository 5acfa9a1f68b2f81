"""Tests of asynchronous works: futures, callbacks that start more collectives, and errors that reach the caller."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist

from perseus_like.torch.compat.works import LOSES_WORKS
from perseus_like.torch.distributed.works.callback_lock import CallbackLock

from .values import all_gather_single


def start(value: float, count: int = 4) -> Any:
    return dist.all_reduce(torch.full((count,), value), async_op=True)


def test_work_and_future(size: int) -> None:
    work = start(1)
    (tensor,) = work.get_future().wait()
    assert tensor[0] == size
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    assert work.result()[0] is tensor


def test_work_of_a_blocking_call_that_no_thread_waits_for(size: int) -> None:
    """The work of a blocking call is executed even if no thread waits for it. `all_reduce` makes such a work."""
    options: Any = dist.AllreduceOptions()
    if not hasattr(options, "asyncOp"):
        pytest.skip(f"torch {torch.__version__} does not distinguish a blocking call from others")
    options.asyncOp = False
    group: Any = dist.group.WORLD

    def begin() -> tuple[torch.Tensor, Any]:
        tensor = torch.ones(3)
        return tensor, group.allreduce([tensor], options)

    tensor, work = begin()
    while not work.is_completed():
        pass
    assert tensor.tolist() == [size] * 3
    tensor, work = begin()
    assert work.get_future().wait()[0].tolist() == [size] * 3
    dropped, work = begin()
    del work
    dist.barrier()
    assert dropped.tolist() == [size] * 3


def test_works_that_are_dropped_without_a_wait_let_go_of_their_tensors() -> None:
    if LOSES_WORKS:
        pytest.skip(f"torch {torch.__version__} needs the last 1000 works to be kept")

    def start_and_drop() -> weakref.ref[torch.Tensor]:
        tensor = torch.ones(3)
        dist.all_reduce(tensor, async_op=True)
        return weakref.ref(tensor)

    tensors = [start_and_drop() for _ in range(20)]
    dist.barrier()
    gc.collect()
    assert [tensor() for tensor in tensors] == [None] * 20


def test_a_callback_starts_and_waits_for_collectives(size: int) -> None:
    def again(future: Any) -> Any:
        (tensor,) = future.value()
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        (second,) = dist.all_reduce(tensor, async_op=True).get_future().wait()
        return second

    assert start(1).get_future().then(again).wait()[0] == size**3


def test_chains_that_start_collectives_while_the_caller_continues(size: int) -> None:
    """Results are right although callbacks and the main thread start collectives in an order that differs by rank."""

    def step(future: Any) -> Any:
        (tensor,) = future.value()
        dist.all_reduce(tensor)
        return [tensor / size]

    chains = []
    for i in range(60):
        future = start(i, 1 + i % 3).get_future()
        for _ in range(4):
            future = future.then(step)
        chains.append(future)
        if i % 5 == 0:
            tensor = torch.ones(2)
            dist.all_reduce(tensor)
            assert tensor[0] == size
    for i, chain in enumerate(chains):
        assert chain.wait()[0][0] == i * size


def test_callbacks_do_not_run_concurrently() -> None:
    """Two callbacks never run at the same time, because callbacks of torch's ZeRO share lists with each other."""
    running, most, ones = 0, 0, torch.ones(1 << 16)

    def callback(future: Any) -> Any:
        nonlocal running, most
        dist.all_reduce(future.value()[0])
        running += 1
        most = max(most, running)
        for _ in range(20):
            ones.mul_(1)  # releases the interpreter's lock
        running -= 1

    for future in [start(1).get_future().then(callback) for _ in range(50)]:
        future.wait()
    assert most == 1


def test_a_callback_that_waits_too_long_for_the_lock_runs_without_it() -> None:
    """A callback that cannot get the callback lock runs without it after `patience_seconds`."""
    lock = CallbackLock(patience_seconds=0.1)
    called = threading.Event()

    def second() -> None:
        with lock.taken():
            called.set()

    thread = threading.Thread(target=second)
    with lock.taken():
        thread.start()
        assert called.wait(60)
    thread.join(60)
    with lock.taken():
        pass


def test_an_exception_in_a_callback_reaches_the_waiter() -> None:
    def fail(_: Any) -> None:
        raise KeyError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        start(1).get_future().then(fail).wait()
    start(1).wait()


def test_groups_that_threads_use_do_not_block_each_other(size: int) -> None:
    groups = [dist.new_group(list(range(size))) for _ in range(2)]
    sums = [0.0, 0.0]

    def work(which: int) -> None:
        for _ in range(50):
            tensor = torch.ones(3)
            dist.all_reduce(tensor, group=groups[which])
            sums[which] += tensor[0].item()

    threads = [threading.Thread(target=work, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sums == [50.0 * size] * 2
    for group in groups:
        dist.destroy_process_group(group)


def test_coalescing(size: int) -> None:
    manager = dist.distributed_c10d._coalescing_manager
    ones, more = torch.ones(2), torch.ones(3)
    with manager():
        dist.all_reduce(ones)
        dist.all_reduce(more)
    assert ones[0] == more[0] == size
    outputs = [torch.empty(size * 2), torch.empty(size * 3)]
    with manager(device=torch.device("cpu"), async_ops=True) as works:
        all_gather_single(outputs[0], ones)
        all_gather_single(outputs[1], more)
    works.wait()
    assert outputs[0].tolist() == [size] * 2 * size
    assert outputs[1].tolist() == [size] * 3 * size
