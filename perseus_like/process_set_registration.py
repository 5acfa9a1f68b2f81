"""Registration of process sets, which is collective over all ranks of the job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .errors import DisagreementError
from .objects import allgather_object
from .process_sets import GLOBAL, ProcessSet, find_id, global_process_set, remember
from .session import session


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Registers a set. Collective over all ranks of the job, which pass the same ranks in the same order of calls.

    Args:
        process_set: the set, or its ranks. If sets are made from communicators, each rank passes the communicator that
            it is in, and one call registers all these sets.

    Returns:
        The registered set. Ranks outside the set get it too.

    Raises:
        ValueError: a rank does not exist, or a set of these ranks is registered already.
        HorovodInternalError: the ranks passed different sets (DisagreementError), or a rank has ended (PeerLostError).

    Examples:
        >>> even = hvd.add_process_set(range(0, hvd.size(), 2))  # doctest: +SKIP
        >>> if even.included():  # doctest: +SKIP
        ...     hvd.allreduce(loss, process_set=even)
    """
    new = _with_ranks(process_set)
    if new.process_set_id is not None:
        raise ValueError(f"{new} is registered already; use it, or call remove_process_set() first")
    if new.mpi_comm is not None:
        _register([new], may_exist=False)
    else:
        _check(new.ranks or [], [])
        _add(new.ranks or [], [new])
    return new


def register(process_sets: Iterable[ProcessSet | Sequence[int]]) -> list[int]:
    """Registers several sets, or finds them registered. Collective; errors are the same on all ranks.

    Returns the positions of duplicates: sets of the same ranks as an earlier one, or as the global set. As in Horovod,
    duplicates stay without an id.
    """
    mine = [_with_ranks(each) for each in process_sets]
    _register(mine, may_exist=True)
    seen = {GLOBAL}
    duplicates: list[int] = []
    for position, each in enumerate(mine):
        number = find_id(each.ranks)
        if number is None:
            continue  # this rank has no communicator
        is_duplicate = number in seen
        seen.add(number)
        if is_duplicate:
            duplicates.append(position)
            if each is not global_process_set:
                each.process_set_id = None
        elif each is not global_process_set:
            remember(each, number)
    return duplicates


def require_set(comm: Any) -> int:
    """Returns the id of the registered set of an mpi4py communicator's ranks. ValueError if there is none."""
    ranks = _with_ranks(ProcessSet(comm)).ranks
    number = find_id(ranks)
    if number is None:
        raise ValueError(f"no registered process set has the communicator's ranks {ranks}; call add_process_set()")
    return number


def _with_ranks(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    known = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if known.mpi_comm and known is not global_process_set:  # MPI.COMM_NULL counts as False
        known.ranks = sorted(known.mpi_comm.allgather(session.core.rank()))
    return known


def _register(mine: list[ProcessSet], may_exist: bool) -> None:
    # For each position of the list: whether all ranks must pass the same ranks there, and the ranks passed.
    gathered = allgather_object([(each.mpi_comm is None, each.ranks) for each in mine], "process_sets")
    lengths = [len(each) for each in gathered]
    if len(set(lengths)) > 1:
        raise DisagreementError(
            f"process_sets: the ranks pass different numbers of sets, by rank: {lengths}; pass the same sets on all "
            "ranks"
        )
    new: list[list[int]] = []
    for position, column in enumerate(zip(*gathered, strict=True)):
        here: list[list[int]] = []
        for rank, (is_fixed, ranks) in enumerate(column):
            if is_fixed and column[0][0] and ranks != column[0][1]:
                raise DisagreementError(
                    f"process_sets: at position {position}, rank 0 passes {column[0][1]}, rank {rank} passes {ranks}; "
                    "pass the same sets on all ranks"
                )
            if ranks is not None and ranks not in here:
                here.append(ranks)
        for ranks in here:
            if may_exist and (ranks in new or find_id(ranks) is not None):
                continue
            _check(ranks, new)
            new.append(ranks)
    for ranks in new:
        _add(ranks, [each for each in mine if each.ranks == ranks][:1])


def _check(ranks: list[int], others: list[list[int]]) -> None:
    core = session.core
    if not ranks:
        raise ValueError("a process set needs at least one rank")
    if len(set(ranks)) != len(ranks):
        raise ValueError(f"a process set of ranks {ranks} names a rank twice; name each rank once")
    if ranks[0] < 0 or ranks[-1] >= core.size():
        raise ValueError(f"a process set of ranks {ranks} names ranks that do not exist; use 0…{core.size() - 1}")
    if ranks in others:
        raise ValueError(f"a process set of ranks {ranks} is given twice; give it once")
    number = find_id(ranks)
    if number is not None:
        raise ValueError(f"a process set of ranks {ranks} exists already, with id {number}")


def _add(ranks: list[int], mine: list[ProcessSet]) -> None:
    handle = session.core.add_process_set(ranks)
    handle.wait()
    for each in mine:
        remember(each, handle.number())
