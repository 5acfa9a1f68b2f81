"""Checks every collective that is started on one stream and waited for on another, against its result on the CPU."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pretended_streams  # type: ignore[import-not-found]
import pytest
import torch
import torch.distributed as dist
from pretended_streams import OnDevice, Stream, current, fill_later, on, to_device, values

from perseus_like.torch.compat.works import _loses_works
from tests.distributed.forms import Tensors, coalesced, forms


def mine(rank: int, count: int = 12, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.arange(count) * (rank + 1) % 7 + 1).to(dtype)


# torch 2.1 has no such integers.
UINT16, UINT64 = (getattr(torch, name, torch.complex128) for name in ("uint16", "uint64"))
FORMS = forms(12)


def on_the_cpu(form: str, dtype: torch.dtype, rank: int, size: int) -> list[Any]:
    read, written, start = FORMS[form]
    source = [mine(rank + i, count, dtype) for i, count in enumerate(read(rank, size))]
    target = source if written is None else [torch.zeros(count, dtype=dtype) for count in written(rank, size)]
    start(source, target).wait()
    return [each.tolist() for each in target]


def prepared(form: str, dtype: torch.dtype, rank: int, size: int) -> tuple[Tensors, Tensors]:
    """Returns the inputs and outputs of a form. The inputs get their values later, on the current stream."""
    read, written, _ = FORMS[form]
    source: Tensors = [to_device(torch.zeros(count, dtype=dtype)) for count in read(rank, size)]
    for i, tensor in enumerate(source):
        fill_later(tensor, mine(rank + i, tensor.numel(), dtype))
    if written is None:
        return source, source
    return source, [to_device(torch.zeros(count, dtype=dtype)) for count in written(rank, size)]


@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        (form, dtype)
        for form in FORMS
        for dtype in (torch.float32, torch.complex64, UINT16)
        if not (form == "maximum" and dtype.is_complex)  # complex numbers have no maximum
    ],
    ids=str,
)
def test_started_on_one_stream_and_waited_for_on_another(form: str, dtype: torch.dtype, rank: int, size: int) -> None:
    expected = on_the_cpu(form, dtype, rank, size)
    starting, waiting = Stream(), Stream()
    with on(starting):
        source, target = prepared(form, dtype, rank, size)
        work = FORMS[form][2](source, target)
    with on(waiting):
        work.wait()
        assert [values(each) for each in target] == expected
    with on(starting):
        assert [values(each) for each in target] == expected


@pytest.mark.parametrize("form", [form for form in FORMS if form != "coalesced"])
def test_futures(form: str, rank: int, size: int) -> None:
    """A callback sees the result on its own stream, and a waiter for the callback's result sees that on its own."""
    expected = on_the_cpu(form, torch.float32, rank, size)
    seen: list[Any] = []

    def look(future: Any) -> list[OnDevice]:
        seen.append([values(each) for each in target])
        return [to_device(each.elements) for each in target]  # type: ignore[attr-defined]

    with on(Stream()):
        source, target = prepared(form, torch.float32, rank, size)
        future = FORMS[form][2](source, target).get_future()
    with on(Stream()):
        copies = future.then(look).wait()
        assert seen == [expected]
        assert [values(each) for each in copies] == expected


def test_the_future_of_coalesced_tensors(size: int) -> None:
    tensors = [to_device(torch.zeros(3)), to_device(torch.zeros(4))]
    for tensor in tensors:
        fill_later(tensor, torch.ones(tensor.numel()))
    future = coalesced([], tensors).works[0].get_future()
    with on(Stream()):
        found = future.wait()
        assert [values(each) for each in found] == [[size] * 3, [size] * 4]


def test_calls_do_not_wait_for_the_device(size: int) -> None:
    """Neither `work.wait()` nor a blocking collective waits for the device. They return before the device starts."""
    tensor = to_device(torch.zeros(4))
    fill_later(tensor, torch.ones(4))
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    if size == 1:  # with more ranks, tensors go through host memory, and the engine waits for the device
        assert tensor.elements.tolist() == [0] * 4
    assert not work.is_completed()
    assert values(tensor) == [size] * 4
    assert work.is_completed()
    assert work.is_success()
    other = to_device(torch.zeros(4))
    fill_later(other, torch.ones(4))
    dist.all_reduce(other)
    if size == 1:
        assert other.elements.tolist() == [0] * 4
    assert values(other) == [size] * 4


def test_strided_tensors(rank: int, size: int) -> None:
    wide = to_device(torch.zeros(3, 4))
    fill_later(wide, torch.ones(3, 4))
    with on(Stream()):
        current().wait_event(Stream(0))
        part = wide[:, 1:3]
        work = dist.all_reduce(part, async_op=True)
        with on(Stream()):
            work.wait()
            assert values(wide) == [[1.0, size, size, 1.0]] * 3
        output = to_device(torch.zeros(2, 3 * size)).t()
        dist.all_gather_into_tensor(output, to_device(torch.full((3, 2), float(rank))))
        assert values(output) == [[float(r)] * 2 for r in range(size) for _ in range(3)]


def test_empty_tensors(size: int) -> None:
    outputs = [to_device(torch.zeros(0)) for _ in range(size)]
    dist.all_gather(outputs, to_device(torch.zeros(0)))
    dist.all_reduce(to_device(torch.zeros(0)))
    dist.reduce_scatter_tensor(to_device(torch.zeros(0)), to_device(torch.zeros(0)))


@pytest.mark.skipif(not hasattr(torch, "uint64"), reason=f"torch {torch.__version__} has no uint64")
def test_float8_and_uint64(size: int) -> None:
    tensor = to_device(torch.zeros(5, dtype=torch.float8_e5m2))
    fill_later(tensor, torch.ones(5).to(torch.float8_e5m2))
    dist.all_reduce(tensor)
    current().synchronize()
    assert tensor.elements.float().tolist() == [size] * 5
    most = to_device(torch.tensor([2**64 - 1], dtype=torch.uint64))
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    assert values(most) == [2**64 - 1]


def test_a_work_that_is_dropped_keeps_its_tensors() -> None:
    """The tensors stay alive as long as the device may use them."""
    if _loses_works():
        pytest.skip(f"with torch {torch.__version__}, the works that nobody has waited for stay alive")
    dist.all_reduce(to_device(torch.ones(3)))
    tensor = to_device(torch.ones(3))
    kept = weakref.ref(tensor)
    dist.all_reduce(tensor, async_op=True)
    del tensor
    dist.barrier()
    gc.collect()
    assert kept() is not None
    other = to_device(torch.ones(3))
    for _ in range(8):  # enough for each of the core's streams, so that the device has finished the dropped work
        dist.all_reduce(other)
        values(other)
    dist.all_reduce(to_device(torch.ones(3)), async_op=True)
    dist.barrier()
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, UINT64], ids=str)
def test_messages(dtype: torch.dtype, rank: int, size: int) -> None:
    """A message has the values that the sender's stream had computed when `isend` was called.

    It arrives after the earlier work of the receiver's stream.
    """
    if size == 1:
        pytest.skip("takes two ranks")
    after, before = (rank + 1) % size, (rank - 1) % size
    source, target = to_device(torch.zeros(6, dtype=dtype)), to_device(torch.zeros(6, 2, dtype=dtype))
    fill_later(source, mine(rank, 6, dtype))
    fill_later(target, torch.full((6, 2), 9).to(dtype))
    operations = [
        dist.P2POp(dist.irecv, target[:, 0], before),
        dist.P2POp(dist.isend, source, after),
    ]
    works = dist.batch_isend_irecv(operations)
    fill_later(source, torch.zeros(6, dtype=dtype))
    with on(Stream()):
        for work in works:
            work.wait()
        assert values(target[:, 0]) == mine(before, 6, dtype).tolist()
        assert values(target[:, 1]) == torch.full((6,), 9).to(dtype).tolist()
    dist.send(target[:, 1], after, tag=5)
    arrived = to_device(torch.zeros(6, dtype=dtype))
    assert dist.recv(arrived, before, tag=5) == before
    assert values(arrived) == torch.full((6,), 9).to(dtype).tolist()


def test_tensors_on_the_cpu_and_the_device_at_the_same_time(size: int) -> None:
    there, here = to_device(torch.ones(4)), torch.ones(4)
    works = [dist.all_reduce(each, async_op=True) for each in (there, here)]
    for work in works:
        work.wait()
    assert values(there) == here.tolist() == [size] * 4


def doubled(tensor: torch.Tensor) -> Any:
    """Starts a reduction whose result differs from its input also on one rank."""
    return dist.all_reduce(tensor, op=vars(dist)["_make_nccl_premul_sum"](2.0), async_op=True)


def test_a_future_does_not_hold_up_the_stream_of_the_call(size: int) -> None:
    """On that stream torch's DDP runs the rest of the backward pass."""
    if size > 1:
        pytest.skip("on the way through the host, the engine waits for the device")
    asking = Stream()
    with on(asking):
        tensor = to_device(torch.zeros(4))
        fill_later(tensor, torch.ones(4))
        future = doubled(tensor).get_future()
        future.wait_on_the_host()
        asking.synchronize()
        assert tensor.elements.tolist() == [1] * 4
    with on(Stream()):
        assert values(future.wait()[0]) == [2] * 4


def test_the_tensors_of_a_future_are_kept_until_the_device_is_done(size: int) -> None:
    """The stream of the call goes on, so torch would use their memory for something else."""
    if _loses_works():
        pytest.skip(f"with torch {torch.__version__}, the works that nobody has waited for stay alive")
    if size > 1:
        pytest.skip("on the way through the host, the engine waits for the device")
    tensor = to_device(torch.ones(3))
    kept = weakref.ref(tensor)
    work = doubled(tensor)
    future = work.get_future()
    future.wait_on_the_host()
    del tensor, work, future
    gc.collect()
    assert kept() is not None
    other = to_device(torch.ones(3))
    for _ in range(8):
        dist.all_reduce(other)
        values(other)
    dist.all_reduce(to_device(torch.ones(3)), async_op=True)
    dist.barrier()
    gc.collect()
    assert kept() is None


def test_results_are_written_to_the_callers_memory(rank: int, size: int) -> None:
    before = pretended_streams.tensors_over_memory
    output = to_device(torch.zeros(4 * size))
    part = output[4 * rank : 4 * rank + 4]  # as FSDP gathers
    fill_later(part, torch.full((4,), rank + 1.0))
    dist.all_gather_into_tensor(output, part)
    assert values(output) == [r + 1.0 for r in range(size) for _ in range(4)]
    scattered = to_device(torch.zeros(4))
    dist.reduce_scatter_tensor(scattered, output)
    assert values(scattered) == [size * (rank + 1.0)] * 4
    assert pretended_streams.tensors_over_memory == before


def test_lists_of_views_are_written_directly(rank: int, size: int) -> None:
    """The parts of one tensor are one block, which NCCL needs. Other lists are copied."""
    before = pretended_streams.tensors_over_memory
    output = to_device(torch.zeros(4 * size))
    mine = to_device(torch.full((4,), rank + 1.0))
    dist.all_gather(list(output.chunk(size)), mine)
    assert values(output) == [r + 1.0 for r in range(size) for _ in range(4)]
    scattered = to_device(torch.zeros(4))
    dist.reduce_scatter(scattered, list(output.chunk(size)))
    assert values(scattered) == [size * (rank + 1.0)] * 4
    assert values(output) == [r + 1.0 for r in range(size) for _ in range(4)]
    assert pretended_streams.tensors_over_memory == before
    apart = [to_device(torch.zeros(4)) for _ in range(size)]
    dist.all_gather(apart, mine)
    assert [values(each) for each in apart] == [[r + 1.0] * 4 for r in range(size)]


def test_an_output_within_the_input(rank: int, size: int) -> None:
    source = to_device(torch.arange(4.0 * size))
    dist.reduce_scatter_tensor(source[:4], source)
    assert values(source[:4]) == [size * (4.0 * rank + i) for i in range(4)]


@pytest.mark.parametrize("allocator", ["native", "cudaMallocAsync"])
def test_record_stream_on_results(allocator: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if size > 1:
        pytest.skip("results that come through the host are in memory of torch")
    import perseus_like.torch as hvd

    monkeypatch.setattr(pretended_streams, "allocator", allocator)
    result = hvd.allgather(to_device(torch.ones(3)), name="results")
    result.record_stream(Stream())
    assert values(result) == [1.0] * 3 * size


def test_no_object_is_made_for_the_current_stream() -> None:
    tensor = to_device(torch.ones(3))
    before = pretended_streams.stream_objects
    dist.all_reduce(tensor)
    dist.all_reduce(tensor, async_op=True).wait()
    assert pretended_streams.stream_objects == before
