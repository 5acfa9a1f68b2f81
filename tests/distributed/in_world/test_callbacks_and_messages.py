"""Callbacks that communicate in several groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

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
    """The natural shape of a hierarchical hook: a sum of neighbours, and in its callback one of neighbourhoods."""
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
