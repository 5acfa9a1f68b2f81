"""Callbacks that communicate in several groups, messages that do not fit, and dtypes of one width."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from .values import ALL_TYPES, all_gather_single, reduce_scatter_single

Future = Any


def future_of(tensor: torch.Tensor, group: Any = None) -> Future:
    work: Any = dist.all_reduce(tensor, group=group, async_op=True)
    return work.get_future()


def total(value: float, group: Any = None) -> float:
    tensor = torch.tensor([value])
    dist.all_reduce(tensor, group=group)
    return tensor.item()


def groups_of(lists: list[list[int]], rank: int) -> Any:
    """Makes all groups on all ranks, and returns this rank's."""
    (mine,) = [group for ranks in lists if (group := dist.new_group(ranks)) is not None and rank in ranks]
    return mine


class Hierarchy:
    """Groups of neighbours, and groups of the ranks with the same place among neighbours."""

    def __init__(self, rank: int, size: int) -> None:
        half = max(size // 2, 1)
        used = half * (size // half)
        self.inner = groups_of([list(range(first, first + half)) for first in range(0, used, half)], rank)
        self.outer = groups_of([list(range(place, used, half)) for place in range(half)], rank)


@pytest.fixture
def hierarchy(rank: int, size: int) -> Iterator[Hierarchy]:
    if size % 2:
        pytest.skip("for an even number of ranks")
    found = Hierarchy(rank, size)
    yield found
    dist.barrier()
    for group in (found.inner, found.outer):
        dist.destroy_process_group(group)


def in_another_group(hierarchy: Hierarchy, rank: int, size: int) -> tuple[Any, Any]:
    """The natural shape of a hierarchical hook: a sum among neighbours, and in its callback one over all of these."""
    tensors = [torch.tensor([float(rank + step)]) for step in range(8)]

    def outer(future: Future) -> torch.Tensor:
        (tensor,) = future.value()
        dist.all_reduce(tensor, group=hierarchy.outer)
        return tensor  # type: ignore[no-any-return]

    found = [future.wait().item() for future in [future_of(each, hierarchy.inner).then(outer) for each in tensors]]
    return found, [sum(other + step for other in range(size)) for step in range(8)]


def after_more_calls_of_some(hierarchy: Hierarchy, rank: int, size: int) -> tuple[Any, Any]:
    """The first neighbours have called their group more often before."""
    if rank < size // 2:
        for _ in range(3):
            dist.barrier(hierarchy.inner)
    return in_another_group(hierarchy, rank, size)


def in_both_groups_and_the_world(hierarchy: Hierarchy, rank: int, size: int) -> tuple[Any, Any]:
    def callback(future: Future) -> list[float]:
        value = future.value()[0].item()
        return [total(value, hierarchy.outer), total(rank, hierarchy.inner), total(1), total(value), total(rank)]

    found = [future_of(torch.ones(1), hierarchy.inner).then(callback) for _ in range(4)]
    half = size // 2
    mine = sum(range(rank // half * half, rank // half * half + half))
    expected = [size, mine, size, size * half, sum(range(size))]
    return [future.wait() for future in found], [expected] * 4


def callbacks_within_callbacks(hierarchy: Hierarchy, rank: int, size: int) -> tuple[Any, Any]:
    def inner(future: Future) -> list[float]:
        return [future.value()[0].item(), total(1, hierarchy.inner), total(1)]

    def outer(future: Future) -> Future:
        return future_of(future.value()[0], hierarchy.outer).then(inner)

    found = [future_of(torch.ones(1), hierarchy.inner).then(outer) for _ in range(4)]
    return [future.wait().wait() for future in found], [[size, size // 2, size]] * 4


def some_members_do_more(hierarchy: Hierarchy, rank: int, size: int) -> tuple[Any, Any]:
    """In the callback of a work of all ranks, some ranks also communicate in a group of their own, first or between."""

    def callback(_: Future) -> list[float]:
        if rank < size // 2:
            assert total(1, hierarchy.inner) == size // 2
        first = total(rank)
        if rank >= size // 2:
            assert total(2, hierarchy.inner) == size // 2 * 2
            assert total(3, hierarchy.inner) == size // 2 * 3
        return [first, total(100 * rank)]

    found = [future_of(torch.ones(1)).then(callback) for _ in range(4)]
    ranks = sum(range(size))
    return [future.wait() for future in found], [[ranks, 100 * ranks]] * 4


def two_groups_of_this_kind(hierarchy: Hierarchy, rank: int, size: int) -> tuple[Any, Any]:
    """Callbacks of two groups communicate in the world, in an order that differs between ranks."""

    def callback(future: Future) -> list[float]:
        value = future.value()[0].item()
        return [total(value), total(10 * value)]

    groups = [hierarchy.inner, hierarchy.outer]
    found = [future_of(torch.ones(1), group).then(callback) for _ in range(4) for group in groups]
    sums = [[size * (size // 2), 10 * size * (size // 2)], [size * 2, 10 * size * 2]]
    return [future.wait() for future in found], sums * 4


CASES = [
    *(in_another_group, after_more_calls_of_some, in_both_groups_and_the_world, callbacks_within_callbacks),
    *(some_members_do_more, two_groups_of_this_kind),
]


@pytest.mark.parametrize("case", CASES)
def test_callbacks_communicate_in_groups(
    case: Callable[[Hierarchy, int, int], tuple[Any, Any]], hierarchy: Hierarchy, rank: int, size: int
) -> None:
    found, expected = case(hierarchy, rank, size)
    assert found == expected


def test_a_message_that_does_not_fit_ends_the_messages_of_the_pair(rank: int, size: int) -> None:
    """No later message takes the place of another one: both ranks get the error, and other ranks go on."""
    group = dist.new_group(list(range(size)))
    misfit = "a message with tag 5: rank 0 sent 2 float32, rank 1 has room for 4 float32; both must be the same"

    def fails(call: Callable[..., Any], peer: int, **options: Any) -> None:
        with pytest.raises(RuntimeError, match=misfit):
            call(torch.zeros(1), peer, group=group, **options)

    if rank == 0:
        before: Any = dist.irecv(torch.zeros(1), 1, group=group, tag=6)
        dist.send(torch.ones(2), 1, group=group, tag=5)
        with pytest.raises(RuntimeError, match=misfit):
            before.wait()
        for value in (1.0, 2.0, 3.0):
            with pytest.raises(RuntimeError, match=misfit):
                dist.send(torch.tensor([value]), 1, group=group, tag=7)
        fails(dist.recv, 1, tag=7)
    if rank == 1:
        with pytest.raises(RuntimeError, match=misfit):
            dist.recv(torch.zeros(4), 0, group=group, tag=5)
        for _ in range(3):
            fails(dist.recv, 0, tag=7)
        fails(dist.send, 0, tag=8)
    others = range(2, size)
    for peer in (0, 1):
        if rank == peer:
            for other in others:
                dist.send(torch.tensor([float(rank)]), other, group=group)
        elif rank in others:
            found = torch.zeros(1)
            assert dist.recv(found, peer, group=group) == found.item() == peer
    assert total(1, group) == size
    dist.destroy_process_group(group)


@pytest.mark.parametrize("count", [3, 1 << 20])
def test_messages_sent_after_one_that_does_not_fit_are_dropped(count: int, rank: int, size: int) -> None:
    """Large messages have lent memory to the receiver, or were sent in part."""
    group = dist.new_group([0, 1])
    if rank == 0:
        for value in range(3):
            dist.isend(torch.full((count,), float(value)), 1, group=group)
    if rank == 1:
        with pytest.raises(RuntimeError, match=f"rank 0 sent {count} float32, rank 1 has room for 4 float32"):
            dist.recv(torch.zeros(4), 0, group=group)
        with pytest.raises(RuntimeError, match=f"rank 0 sent {count} float32"):
            dist.recv(torch.zeros(count), 0, group=group)
    if rank < 2:
        dist.barrier(group)
        dist.destroy_process_group(group)


def bytes_of(dtype: torch.dtype) -> int:
    return torch.empty(0, dtype=dtype).element_size()


# Two dtypes of one width with the same count, and complex numbers beside twice as many real ones.
PAIRS = [
    *((one, 4, two, 4) for one, two in itertools.combinations(ALL_TYPES, 2) if bytes_of(one) == bytes_of(two)),
    (torch.complex64, 2, torch.float32, 4),
    (torch.complex128, 2, torch.float64, 4),
]


def ones(dtype: torch.dtype, count: int) -> torch.Tensor:
    return torch.ones(count).to(dtype)


def gather(tensor: torch.Tensor, size: int) -> None:
    outputs = [torch.zeros_like(tensor) for _ in range(size)] if dist.get_rank() == 0 else None
    dist.gather(tensor, outputs, 0)


def scatter(tensor: torch.Tensor, size: int) -> None:
    dist.scatter(torch.zeros_like(tensor), [tensor] * size if dist.get_rank() == 0 else None, 0)


def reduce_scatter(tensor: torch.Tensor, size: int) -> None:
    dist.reduce_scatter(torch.zeros_like(tensor), [tensor] * size)


def all_to_all(tensor: torch.Tensor, size: int) -> None:
    dist.all_to_all([torch.zeros_like(tensor) for _ in range(size)], [tensor] * size)


def coalesced(tensor: torch.Tensor, size: int) -> None:
    with dist.distributed_c10d._coalescing_manager():
        dist.all_reduce(tensor)
        dist.all_reduce(tensor.clone())


OF_PAIRS: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "all_reduce SUM": lambda tensor, size: dist.all_reduce(tensor),
    "all_reduce MAX": lambda tensor, size: dist.all_reduce(tensor, dist.ReduceOp.MAX),
    "reduce": lambda tensor, size: dist.reduce(tensor, 0),
    "broadcast": lambda tensor, size: dist.broadcast(tensor, 0),
    "all_gather": lambda tensor, size: dist.all_gather([torch.zeros_like(tensor) for _ in range(size)], tensor),
    "all_gather_into_tensor": lambda tensor, size: all_gather_single(tensor.repeat(size), tensor),
    "gather": gather,
    "scatter": scatter,
    "reduce_scatter_tensor": lambda tensor, size: reduce_scatter_single(torch.zeros_like(tensor), tensor.repeat(size)),
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
    "coalesced all_reduce": coalesced,
    "all_to_all_single": lambda tensor, size: dist.all_to_all_single(tensor.repeat(size), tensor.repeat(size)),
}


@pytest.mark.parametrize("verb", OF_PAIRS)
def test_dtypes_of_one_width_are_different_dtypes(verb: str, rank: int, size: int) -> None:
    for one, first, two, second in PAIRS:
        if verb == "all_reduce MAX" and (one.is_complex or two.is_complex):
            continue
        tensor = ones(one, first) if rank == 0 else ones(two, second)
        with pytest.raises(RuntimeError, match=r"rank 0 (has|calls|asks)"):
            OF_PAIRS[verb](tensor, size)


def test_messages_of_dtypes_of_one_width_do_not_fit(rank: int) -> None:
    for one, first, two, second in PAIRS:
        group = dist.new_group([0, 1])
        if rank == 0:
            dist.send(ones(one, first), 1, group=group)
        if rank == 1:
            with pytest.raises(RuntimeError, match=r"rank 0 sent .*, rank 1 has room for"):
                dist.recv(ones(two, second), 0, group=group)
        if rank < 2:
            dist.destroy_process_group(group)


def _receive_from_any(tensor: torch.Tensor, group: Any) -> None:
    dist.recv(tensor, group=group)


def _receive_in_a_batch(tensor: torch.Tensor, group: Any) -> None:
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, tensor, 0, group)]):
        work.wait()


@pytest.mark.parametrize("receive", [_receive_from_any, _receive_in_a_batch])
def test_receives_of_each_kind_refuse_another_dtype(receive: Callable[[torch.Tensor, Any], None], rank: int) -> None:
    group = dist.new_group([0, 1])
    if rank == 0:
        dist.send(torch.ones(4), 1, group=group)
    if rank == 1:
        with pytest.raises(RuntimeError, match="rank 0 sent 4 float32, rank 1 has room for 4 int32"):
            receive(torch.zeros(4, dtype=torch.int32), group)
    if rank < 2:
        dist.destroy_process_group(group)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32])
def test_an_average_of_integers_does_not_wrap(dtype: torch.dtype, rank: int, size: int) -> None:
    most = torch.iinfo(dtype).max
    tensor = torch.full((3,), most, dtype=dtype)
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    assert tensor.tolist() == [most] * 3
    output = torch.zeros(3, dtype=dtype)
    reduce_scatter_single(output, torch.full((3 * size,), most, dtype=dtype), op=dist.ReduceOp.AVG)
    assert output.tolist() == [most] * 3
