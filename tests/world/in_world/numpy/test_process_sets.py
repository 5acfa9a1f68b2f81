"""Tests of process sets that communicate at the same time, and that are added and removed."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

import perseus_like.numpy as hvd
from perseus_like import process_set_registration, process_sets
from perseus_like.common.basics import HorovodBasics


def all_subsets(size: int) -> list[list[int]]:
    """Returns every proper subset of the ranks. Each rank is in many of them."""
    return [list(ranks) for count in range(1, size) for ranks in itertools.combinations(range(size), count)]


def test_overlapping_sets_at_the_same_time(rank: int, size: int) -> None:
    sets = [hvd.add_process_set(ranks) for ranks in all_subsets(size)]
    mine = [each for each in sets if each.included()]
    order = random.Random(rank)  # each rank has a different order
    for step in range(5):
        order.shuffle(mine)
        data = {each: np.full(step * 1000 + 1, 1.0 + rank, np.float32) for each in mine}
        started = [(each, hvd.allreduce_async(data[each], name="same", op=hvd.Sum, process_set=each)) for each in mine]
        everybody = hvd.allreduce_async(np.float64(rank), name="same", op=hvd.Sum)
        order.shuffle(started)
        for each, handle in started:
            assert each.ranks is not None
            expected = sum(1.0 + member for member in each.ranks)
            assert (hvd.synchronize(handle) == expected).all(), each
        assert hvd.synchronize(everybody) == sum(range(size))
    for each in sets:
        assert hvd.remove_process_set(each)


def test_blocking_verbs_on_overlapping_sets(rank: int, size: int, two_ranks: None) -> None:
    # The sets are a ring of pairs. Each rank is in two pairs, and begins with the lower one.
    pairs = [sorted({first, (first + 1) % size}) for first in range(size)] if size > 2 else [[0]]
    sets = [hvd.add_process_set(pair) for pair in pairs]
    for _ in range(20):
        for each in sets:
            if each.included():
                assert each.ranks is not None
                root = each.ranks[-1]
                assert hvd.broadcast(np.float64(rank), root, process_set=each) == root
                assert hvd.allgather(np.array([rank]), process_set=each).tolist() == each.ranks
                assert hvd.allgather_object(rank, process_set=each) == each.ranks
                hvd.barrier(process_set=each)
    for each in reversed(sets):
        assert hvd.remove_process_set(each)


def test_work_submitted_before_a_removal_is_finished(rank: int, size: int, two_ranks: None) -> None:
    ranks = list(range(size - 1)) if size > 2 else [0]
    for _ in range(40):
        removed = hvd.add_process_set(ranks)
        names = ["first", "second", "third"] if rank in ranks else []
        started = [hvd.allreduce_async(np.ones(1000), name=name, op=hvd.Sum, process_set=removed) for name in names]
        assert hvd.remove_process_set(removed)
        for handle in started:
            assert (hvd.synchronize(handle) == len(ranks)).all()


def test_ranks_that_do_not_exist(rank: int, size: int) -> None:
    for ranks in ([size], [-1], [0, size], [0, 0], []):
        with pytest.raises(ValueError, match="process set"):
            hvd.add_process_set(ranks)
        with pytest.raises(ValueError, match="process set"):
            process_set_registration.register([ranks])
    with pytest.raises(ValueError, match="exists already, with id 0"):
        hvd.add_process_set(range(size))
    assert hvd.allreduce(1.0, op=hvd.Sum) == size


def test_sets_that_are_listed_twice_in_init(rank: int, size: int, two_ranks: None) -> None:
    """The error names the position, and the session runs with each set once, as in Horovod."""
    sets = [hvd.ProcessSet(ranks) for ranks in ([0], range(size), [1], [0])]
    with pytest.raises(ValueError, match=r"entry 1, .*the session runs"):
        hvd.init(process_sets=sets)
    assert [each.process_set_id is None for each in sets] == [False, True, False, True]
    with pytest.raises(ValueError, match="not registered"):
        hvd.allreduce(1.0, process_set=sets[3])
    # A second init(), for example of another library, finds these sets, and registers new ones.
    found, new = hvd.ProcessSet([0]), hvd.ProcessSet([0, 1])
    hvd.init(process_sets=[found, new, sets[2]] if size > 2 else [found, sets[2]])
    assert found.process_set_id == sets[0].process_set_id
    assert (new.process_set_id is None) == (size == 2)
    if size > 2 and rank < 2:
        assert hvd.allreduce(1.0, op=hvd.Sum, process_set=new) == 2
    assert hvd.remove_process_set(found)
    assert sets[0].process_set_id is None  # both objects are the same set
    assert hvd.remove_process_set(sets[2])
    hvd.remove_process_set(new)


def test_process_sets_in_private_functions_of_horovod(rank: int, size: int) -> None:
    if size < 3:
        pytest.skip("no two groups that differ from the world")
    basics = HorovodBasics(__file__)
    lower = hvd.add_process_set([0, 1])
    assert lower.process_set_id is not None
    world = list(range(size))
    assert basics._get_process_set_ids_and_ranks() == {0: world, lower.process_set_id: [0, 1]}
    assert basics._comm_process_set_id(Communicator(world)) == 0
    if rank < 2:
        assert basics._comm_process_set_id(Communicator([0, 1])) == lower.process_set_id
    else:
        with pytest.raises(ValueError, match="no registered process set"):
            basics._comm_process_set_id(Communicator(world[2:]))
    hvd.remove_process_set(lower)


class Communicator:
    """Imitates a communicator of mpi4py."""

    def __init__(self, ranks: list[int]) -> None:
        self.ranks = ranks

    def allgather(self, value: int) -> list[int]:
        assert value in self.ranks
        return list(reversed(self.ranks))

    def __bool__(self) -> bool:
        return bool(self.ranks)


def test_sets_from_communicators(rank: int, size: int) -> None:
    if size < 3:
        pytest.skip("no two groups that differ from the world")
    halves = [list(range(0, size, 2)), list(range(1, size, 2))]
    mine = hvd.ProcessSet(Communicator(halves[rank % 2]))
    hvd.add_process_set(mine)
    assert mine.ranks == halves[rank % 2]
    assert mine.included()
    assert hvd.allreduce(1.0, op=hvd.Sum, process_set=mine) == len(halves[rank % 2])
    ids = hvd.allgather_object(mine.require_id())
    assert ids == [ids[0], ids[0] + 1] * (size // 2) + [ids[0]] * (size % 2)
    again = hvd.ProcessSet(Communicator(halves[rank % 2]))
    with pytest.raises(ValueError, match="exists already"):
        hvd.add_process_set(again)
    for number in range(ids[0], ids[0] + 2):
        remove_everywhere(mine, number)
    # Rank 0 takes no part, as with MPI.COMM_NULL.
    rest = list(range(1, size))
    partial = hvd.ProcessSet(Communicator(rest if rank else []))
    hvd.add_process_set(partial)
    assert (partial.process_set_id is None) == (rank == 0)
    if rank:
        assert hvd.allreduce(1.0, op=hvd.Sum, process_set=partial) == size - 1
    remove_everywhere(partial, ids[0] + 2)


def remove_everywhere(mine: process_sets.ProcessSet, number: int) -> None:
    """Removes a set on all ranks. Only the members of the set have an object for it."""
    other = hvd.ProcessSet([])
    other.process_set_id = number
    assert hvd.remove_process_set(mine if mine.process_set_id == number else other)


def test_ranks_that_disagree_about_sets(rank: int, size: int, two_ranks: None) -> None:
    with pytest.raises(hvd.HorovodInternalError, match="position 0, rank 0 passes"):
        process_set_registration.register([[rank]])
    with pytest.raises(hvd.HorovodInternalError, match="different numbers"):
        process_set_registration.register([[0]] * (1 + rank % 2))
    assert hvd.allreduce(1.0, op=hvd.Sum) == size
