"""Checks errors of wrong calls: a local mistake is a ValueError, and a disagreement has the same text on all ranks."""

from __future__ import annotations

import gc
import itertools
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import perseus_like.numpy as hvd
from perseus_like.collectives import Collectives, Op
from perseus_like.tensor import ArrayTensors


def all_fail(call: Callable[[], Any], *parts: str) -> None:
    """Asserts that every rank gets the same error, which contains `parts`, and that the job continues."""
    with pytest.raises(hvd.HorovodInternalError) as caught:
        call()
    text = str(caught.value)
    assert all(part in text for part in parts), text
    assert set(hvd.allgather_object(text)) == {text}
    assert hvd.allreduce(1.0, op=hvd.Sum) == hvd.size()


needs_two = pytest.mark.usefixtures("two_ranks")


@needs_two
def test_ranks_that_disagree(rank: int, size: int) -> None:
    last = rank == size - 1
    all_fail(lambda: hvd.allreduce(np.ones((2, 3 + last)), name="shapes"), "shapes", "[2,3]", "[2,4]")
    all_fail(lambda: hvd.allreduce(np.ones((3, 2) if last else (2, 3)), name="flipped"), "flipped", "[2,3]", "[3,2]")
    kind = np.float32 if last else np.int32
    all_fail(lambda: hvd.allreduce(np.ones(2, kind), name="types"), "types", "float32", "int32")
    op = hvd.Min if last else hvd.Sum
    all_fail(lambda: hvd.allreduce(np.ones(2), op=op, name="ops"), "ops", "min", "sum")
    op = hvd.Average if last else hvd.Sum
    all_fail(lambda: hvd.allreduce(np.ones(2), op=op, name="averages"), "averages", "op sum", "op average")
    factor = 2.0 if last else 1.0
    all_fail(lambda: hvd.allreduce(np.ones(2), prescale_factor=factor, name="factors"), "prescale 1", "prescale 2")
    all_fail(lambda: hvd.allreduce(np.ones(2), postscale_factor=factor, name="after"), "postscale 1", "postscale 2")
    all_fail(lambda: hvd.broadcast(np.ones(2), int(last), name="roots"), "roots", "0", "1")
    all_fail(lambda: hvd.allgather(np.ones((1, 2 + last)), name="columns"), "columns")
    all_fail(lambda: hvd.allgather(np.ones((1,) * (2 + last)), name="dimensions"), "dimensions")
    all_fail(lambda: hvd.alltoall(np.ones((size, 2 + last)), name="sent"), "sent")
    all_fail(lambda: hvd.reducescatter(np.ones((size, 2 + last)), name="scattered"), "scattered")
    wire = hvd.Compression.fp16 if last else hvd.Compression.none
    all_fail(lambda: hvd.allreduce(np.ones(2), compression=wire, name="wires"), "wires")


@needs_two
def test_another_verb_under_one_name(rank: int, size: int) -> None:
    last = rank == size - 1
    one = np.ones((size, 2))
    verbs: list[Callable[[str], Any]] = [
        lambda name: hvd.allreduce(one, name=name),
        lambda name: hvd.broadcast(one, 0, name=name),
        lambda name: hvd.allgather(one, name=name),
        lambda name: hvd.grouped_allreduce([one], name=name),
    ]
    for number, (first, second) in enumerate(itertools.pairwise(verbs)):
        for _ in range(3):  # the response cache has a number for the name by the third call
            hvd.allreduce(one, name=f"other{number}")
        name = f"other{number}"
        all_fail(lambda: (second if last else first)(name), name, "; all ranks must pass the same")  # noqa: B023


@needs_two
def test_two_verbs_under_one_name_in_another_order_on_each_rank(rank: int, size: int) -> None:
    one = np.ones(3)
    started: list[Callable[..., Any]] = [
        hvd.allreduce_async,
        lambda tensor, **rest: hvd.broadcast_async(tensor, 0, **rest),
    ]
    if rank == size - 1:
        started.reverse()
    for handle in [start(one, name="twice") for start in started]:
        assert hvd.synchronize(handle).tolist() == [1.0] * 3


@needs_two
@pytest.mark.parametrize("others_wait", [False, True])
def test_a_rank_may_compute_before_it_submits_the_other_verb(others_wait: bool, rank: int, size: int) -> None:
    one = np.ones(3)
    verbs: list[Callable[[], Any]] = [
        lambda: hvd.allreduce_async(one, name=f"later{others_wait}"),
        lambda: hvd.broadcast_async(one, 0, name=f"later{others_wait}"),
    ]
    if rank == 0:
        verbs.reverse()
    handles = [verbs[0]()]
    if others_wait and rank > 0:
        assert hvd.synchronize(handles.pop()).tolist() == [1.0] * 3
    else:
        time.sleep(1.5)  # This is the computation: no event would say that the core has let the time pass.
    handles.append(verbs[1]())
    for handle in handles:
        assert hvd.synchronize(handle).tolist() == [1.0] * 3


@needs_two
def test_a_group_fails_as_a_whole(rank: int, size: int) -> None:
    odd = np.ones(2 + (rank == 0))
    all_fail(lambda: hvd.grouped_allreduce([np.ones(3), odd], name="group"), "group")
    all_fail(lambda: hvd.grouped_allreduce([np.ones(3)] * (2 + (rank == 0)), name="count"), "count")


def test_local_mistakes_are_value_errors(rank: int, size: int) -> None:
    array = np.ones((size, 2))
    with pytest.raises(ValueError, match="root_rank"):
        hvd.broadcast(array, size)
    with pytest.raises(ValueError, match="root_rank"):
        hvd.broadcast(array, -1)
    with pytest.raises(ValueError, match="splits"):
        hvd.alltoall(array, splits=[1] * (size + 1))
    with pytest.raises(ValueError, match="whole numbers"):
        hvd.alltoall(array, splits=[1.0] * size)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="splits"):
        hvd.alltoall(array, splits=[size + 1] + [0] * (size - 1))
    with pytest.raises(ValueError, match="negative"):
        hvd.alltoall(array, splits=[-1] * size)
    if size > 1:
        with pytest.raises(ValueError, match="do not divide among"):
            hvd.alltoall(np.ones(size + 1))
    for unsupported, name in ((np.ones(2, "datetime64[s]"), "datetime64"), (np.array(["a"]), "<U1")):
        with pytest.raises(ValueError, match=name):
            hvd.allreduce(unsupported)
    with pytest.raises(ValueError, match="object"):
        hvd.allgather(np.array([None]))
    with pytest.raises(ValueError, match="not registered"):
        hvd.allreduce(array, process_set=hvd.ProcessSet([0]))
    with pytest.raises(ValueError, match="Max of complex"):
        hvd.allreduce(np.ones(2, np.complex128), op=hvd.Max)
    with pytest.raises(ValueError, match="dimension 0"):
        hvd.allgather(np.float32(1))
    with pytest.raises(ValueError, match="average"):
        hvd.allreduce(array, average=True, op=hvd.Sum)
    with pytest.raises(ValueError, match="use one of Average"):
        hvd.allreduce(array, op=77)
    for kind in (ValueError, RuntimeError):  # Horovod raises a RuntimeError
        with pytest.raises(kind, match="use Average or Sum"):
            hvd.reducescatter(array, op=hvd.Max)
    for grouped in (hvd.grouped_allreduce, hvd.grouped_allgather, hvd.grouped_reducescatter):
        with pytest.raises(ValueError, match="empty"):
            grouped([])
    assert hvd.allreduce(1.0, op=hvd.Sum) == size


@needs_two
def test_a_name_in_progress_cannot_be_used_again(rank: int, size: int) -> None:
    # The last rank submits later, so that the name is in progress on the other ranks.
    if rank < size - 1:
        handle = hvd.allreduce_async(np.ones(2), name="busy")
        with pytest.raises(ValueError, match=r"'busy'.* is already in flight"):
            hvd.allreduce_async(np.ones(2), name="busy")
        hvd.allreduce(1.0, name="ready")
    else:
        hvd.allreduce(1.0, name="ready")
        handle = hvd.allreduce_async(np.ones(2), name="busy")
    assert hvd.synchronize(handle).tolist() == [1.0, 1.0]
    assert hvd.allreduce(np.ones(2), name="busy").tolist() == [1.0, 1.0]


def test_a_failed_call_does_not_shift_later_names(rank: int, size: int) -> None:
    if rank == 0:
        for _ in range(3):
            with pytest.raises(ValueError, match="datetime64"):
                hvd.allreduce(np.ones(2, "datetime64[s]"))
    assert hvd.allreduce(np.ones(2), op=hvd.Sum).tolist() == [size, size]


@needs_two
def test_tensors_of_a_dropped_handle_live_until_the_work_is_complete(rank: int, size: int) -> None:
    verbs = Collectives(ArrayTensors())

    def drop_on_rank_0(name: str) -> Callable[[], object]:
        """Drops the handle of rank 0 before the other ranks submit. Returns a weak reference to the tensor."""
        tensor = np.full(1 << 16, rank + 1.0)
        if rank == 0:
            verbs.allreduce(tensor, Op.Sum, name, in_place=True)
        alive = weakref.ref(tensor)
        if rank == 0:
            del tensor
            gc.collect()
            assert alive() is not None
        hvd.broadcast(np.zeros(1), 0, name=f"{name}.dropped")
        if rank != 0:
            assert hvd.allreduce(tensor, op=hvd.Sum, name=name)[0] == size * (size + 1) / 2
        hvd.barrier()
        return alive

    first = drop_on_rank_0("dropped.1")
    drop_on_rank_0("dropped.2")
    gc.collect()
    assert first() is None


@needs_two
def test_process_sets(rank: int, size: int) -> None:
    with pytest.raises(ValueError, match="ranks that do not exist"):
        hvd.add_process_set([0, size])
    with pytest.raises(ValueError, match="twice"):
        hvd.add_process_set([0, 0])
    with pytest.raises(ValueError, match="exists already"):
        hvd.add_process_set(range(size))
    assert hvd.global_process_set.ranks == list(range(size))
    last = hvd.add_process_set([size - 1])
    evens = hvd.add_process_set(hvd.ProcessSet(range(0, size, 2)))
    assert last.included() == (rank == size - 1)
    assert evens.size() == len(range(0, size, 2))
    if evens.included():
        assert evens.rank() == rank // 2
        assert hvd.allreduce(1.0, op=hvd.Sum, process_set=evens) == evens.size()
        biggest = (size - 1) // 2 * 2
        assert hvd.broadcast(rank, biggest, process_set=evens) == biggest
        with pytest.raises(ValueError, match="not in"):
            hvd.broadcast(rank, 1, process_set=evens)
        assert hvd.allgather_object(rank, process_set=evens) == list(range(0, size, 2))
    else:
        with pytest.raises(ValueError, match=f"rank {rank} is not in"):
            hvd.allreduce(1.0, process_set=evens)
        with pytest.raises(ValueError, match="not in"):
            evens.rank()
    hvd.barrier()
    assert hvd.remove_process_set(evens) is True
    assert evens.process_set_id is None
    assert hvd.remove_process_set(evens) is False
    assert hvd.remove_process_set(hvd.global_process_set) is False
    assert hvd.remove_process_set(last) is True
    with pytest.raises(ValueError, match="not registered"):
        hvd.allreduce(1.0, process_set=last)
