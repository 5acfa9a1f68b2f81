"""Tests of init(comm=…), which makes jobs of some of the started ranks, under perseusrun and under mpirun."""

from __future__ import annotations

from tests.job import Job, needs

from .conftest import Mpirun, Ranks

# The steps are: several groups at once with their own orders, all ranks, and groups that leave ranks out.
GROUPS_OF_RANKS = """
import os, sys
import numpy as np
import perseus_like.numpy as hvd

own = int(os.environ.get("PERSEUS_RANK", os.environ.get("PMI_RANK", "0")))
for turn, groups in enumerate([([2, 0], [1, 3]), ([0, 1, 2, 3],), ([3, 1, 2], [0]), ([1, 2],), ([1, 2],)]):
    mine = next((group for group in groups if own in group), None)
    if mine is None:
        continue
    hvd.init(comm=mine)
    assert (hvd.rank(), hvd.size()) == (mine.index(own), len(mine)), (own, mine)
    assert hvd.allgather_object(own) == mine
    assert hvd.allreduce(np.full(300_000, own, np.float32), op=hvd.Sum)[-1] == sum(mine)
    if len(mine) > 2:
        subset = hvd.add_process_set([0, 2])
        if subset.included():
            assert hvd.allgather(np.array([own]), process_set=subset).tolist() == [mine[0], mine[2]]
    hvd.shutdown()
mistakes = {(9,): "names rank 9", (own, own): "twice", ((own + 1) % 4,): "not among them", (-1,): "rank -1"}
for wrong, text in mistakes.items():
    try:
        hvd.init(comm=wrong)
    except ValueError as error:
        assert text in str(error), error
    else:
        raise AssertionError(wrong)
hvd.init()
assert hvd.size() == 4
print(f"rank {own} is done", flush=True)
"""

COMMUNICATORS = """
import sys
from mpi4py import MPI
import numpy as np
import perseus_like.numpy as hvd

world = MPI.COMM_WORLD
own = world.rank
hvd.init(comm=world)
assert (hvd.rank(), hvd.size(), hvd.mpi_enabled(), hvd.gloo_enabled()) == (own, 4, True, False)
assert hvd.mpi_threads_supported() == (MPI.Query_thread() == MPI.THREAD_MULTIPLE)
hvd.shutdown()

half = world.Split(own % 2, -own)
hvd.init(comm=half, process_sets=[hvd.ProcessSet(MPI.COMM_SELF)])
assert (hvd.rank(), hvd.size()) == (half.rank, 2)
assert hvd.allgather_object(own) == half.allgather(own) == [2 + own % 2, own % 2]
hvd.shutdown()

rest = world.Split(MPI.UNDEFINED if own == 0 else 1, own)
try:
    hvd.init(comm=rest)
except ValueError as error:
    assert own == 0 and "COMM_NULL" in str(error)
else:
    assert own > 0 and hvd.size() == 3 and hvd.global_process_set.mpi_comm == rest
    hvd.shutdown()

# Sets are registered in Horovod's order: for each position, rank 0's set comes first.
evens_or_odds = world.Split(own % 2, own)
sets = [hvd.ProcessSet(evens_or_odds), hvd.ProcessSet([0]), hvd.ProcessSet(rest)]
hvd.init(process_sets=sets)
assert [each.process_set_id for each in sets] == [1 + own % 2, 3, 4 if own else None]
assert sets[0].ranks == ([0, 2], [1, 3])[own % 2]
for each in sets[:2]:
    if each.included():
        assert hvd.allreduce(1.0, op=hvd.Sum, process_set=each) == each.size()
world.Barrier()
print(f"rank {own} is done", flush=True)
"""


def assert_all_are_done(world: Job) -> None:
    assert world.code == 0, world.stderr
    assert [f"rank {rank} is done" in world.stdout for rank in range(4)] == [True] * 4, world.stdout


def test_groups_of_ranks(ranks: Ranks) -> None:
    assert_all_are_done(ranks(4, GROUPS_OF_RANKS))


def test_groups_of_ranks_under_mpirun(mpirun: Mpirun) -> None:
    assert_all_are_done(mpirun(GROUPS_OF_RANKS))


def test_groups_without_multiple_mpi_threads(mpirun: Mpirun) -> None:
    program = f"{GROUPS_OF_RANKS}\nassert hvd.mpi_enabled() and not hvd.mpi_threads_supported()\n"
    assert_all_are_done(mpirun(program, HOROVOD_MPI_THREADS_DISABLE="1", HOROVOD_CPU_OPERATIONS="MPI"))


def test_communicators(mpirun: Mpirun) -> None:
    needs("mpi4py")
    assert_all_are_done(mpirun(COMMUNICATORS))


def test_a_communicator_without_mpi_is_an_error(ranks: Ranks) -> None:
    needs("mpi4py")
    ranks(
        2,
        """
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError):
            sys.exit(0)  # no libmpi
        try:
            hvd.init(comm=MPI.COMM_WORLD)
        except RuntimeError as error:
            assert "without MPI" in str(error), error
        else:
            raise AssertionError(hvd.size())
        assert not hvd.is_initialized()
        """,
    ).succeeded()
