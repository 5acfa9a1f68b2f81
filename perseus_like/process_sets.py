"""Subsets of ranks that communicate among themselves. Horovod's API of `horovod.common.process_sets`."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from .errors import DisagreementError
from .session import session

GLOBAL = 0


def as_ranks(what: str, given: Iterable[int]) -> list[int]:
    """ValueError for what are no whole numbers."""
    try:
        return [operator.index(rank) for rank in given]
    except TypeError:
        raise ValueError(f"{what} takes a list of ranks or an mpi4py communicator, not {given!r}") from None


class ProcessSet:
    """Some ranks of the job, in ascending order. Has an id once `init` or `add_process_set` has registered it.

    Made from ranks, or from an mpi4py communicator (anything with `allgather`), whose ranks are found at registration.
    """

    process_set_id: int | None = None
    ranks: list[int] | None = None
    mpi_comm: Any = None

    def __init__(self, ranks_or_comm: Iterable[int] | Any) -> None:
        if hasattr(ranks_or_comm, "allgather"):
            self.mpi_comm = ranks_or_comm
        else:
            self.ranks = sorted(as_ranks("ProcessSet", ranks_or_comm))

    def included(self) -> bool | None:
        """Whether this process is in the set; None while its ranks are not known."""
        return None if not self.ranks else session.core.rank() in self.ranks

    def rank(self) -> int | None:
        """The rank of this process within the set; None if not registered; ValueError outside of it."""
        if self.process_set_id is None or self.ranks is None:
            return None
        return self.rank_within(session.core.rank())

    def rank_within(self, global_rank: int) -> int:
        """The rank that `global_rank` has in this set. ValueError if it is not in it."""
        if self.ranks is None or global_rank not in self.ranks:
            raise ValueError(f"rank {global_rank} is not in {self}")
        return self.ranks.index(global_rank)

    def size(self) -> int | None:
        """How many ranks; None if not registered."""
        return None if self.process_set_id is None or self.ranks is None else len(self.ranks)

    def require_id(self) -> int:
        """The id that the core knows the set by. ValueError when there is none."""
        if self.process_set_id is None:
            raise ValueError(f"{self} is not registered; pass it to init(process_sets=…) or add_process_set()")
        return self.process_set_id

    def __deepcopy__(self, memo: dict[int, Any]) -> ProcessSet:
        """Itself: a copied model goes on with the ranks it had, under the id that they know."""
        return self

    def __reduce__(self) -> Any:
        return "global_process_set" if self is global_process_set else object.__reduce__(self)

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"

    __repr__ = __str__


global_process_set = ProcessSet([])
global_process_set.process_set_id = GLOBAL

_registered: list[ProcessSet] = []


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Registers a set. Collective over all ranks of the job, which pass the same ranks in the same order of calls.

    With communicators, each rank passes the one it is in: all sets that come together so are registered.
    ValueError for ranks that do not exist, and for a set of ranks that is registered already.
    """
    new = _with_ranks(process_set)
    if new.process_set_id is not None:
        raise ValueError(f"{new} is registered already")
    if new.mpi_comm is not None:
        _register([new], may_exist=False)
    else:
        _check(new.ranks or [], [])
        _add(new.ranks or [], [new])
    return new


def register(process_sets: Iterable[ProcessSet | Sequence[int]]) -> list[int]:
    """Registers several sets, or finds them registered; errors are the same on all ranks.

    Gives the places of those that are there twice: of the same ranks as one before them, or as the world. As in
    Horovod, these stay without an id.
    """
    mine = [_with_ranks(each) for each in process_sets]
    _register(mine, may_exist=True)
    seen = {GLOBAL}
    twice: list[int] = []
    for place, each in enumerate(mine):
        number = _find(each.ranks)
        if number is None:
            continue  # this rank has no communicator
        if number in seen:
            twice.append(place)
        seen.add(number)
        if each is not global_process_set:
            each.process_set_id = None if place in twice else number
        if each.process_set_id and each not in _registered:
            _registered.append(each)
    return twice


def _with_ranks(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    known = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if known.mpi_comm and known is not global_process_set:  # MPI.COMM_NULL counts as False
        known.ranks = sorted(known.mpi_comm.allgather(session.core.rank()))
    return known


def registered_ranks() -> dict[int, list[int]]:
    """The ranks of every registered set, by its id; the world is 0."""
    core = session.core
    return {number: list(core.process_set_ranks(number)) for number in core.process_set_ids()}


def require_set(comm: Any) -> int:
    """The id of the registered set of an mpi4py communicator's ranks. ValueError if there is none."""
    ranks = _with_ranks(ProcessSet(comm)).ranks
    number = _find(ranks)
    if number is None:
        raise ValueError(f"the communicator's ranks {ranks} are those of no registered process set")
    return number


def _find(ranks: list[int] | None) -> int | None:
    """The id of the registered set of these ranks."""
    return next((number for number, known in registered_ranks().items() if known == ranks), None)


def _register(mine: list[ProcessSet], may_exist: bool) -> None:
    from .objects import allgather_object

    # By place in the list, what each rank has there, and whether it must be what all have.
    told = allgather_object([(each.mpi_comm is None, each.ranks) for each in mine], "process_sets")
    lengths = [len(each) for each in told]
    if len(set(lengths)) > 1:
        raise DisagreementError(f"process_sets: the ranks have different numbers of them: {lengths}")
    new: list[list[int]] = []
    for place, column in enumerate(zip(*told, strict=True)):
        here: list[list[int]] = []
        for rank, (is_fixed, ranks) in enumerate(column):
            if is_fixed and column[0][0] and ranks != column[0][1]:
                raise DisagreementError(
                    f"process_sets: at place {place}, rank 0 has {column[0][1]}, rank {rank} has {ranks}"
                )
            if ranks is not None and ranks not in here:
                here.append(ranks)
        for ranks in here:
            if may_exist and (ranks in new or _find(ranks) is not None):
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
        raise ValueError(f"a process set of ranks {ranks} names a rank twice")
    if ranks[0] < 0 or ranks[-1] >= core.size():
        raise ValueError(f"a process set of ranks {ranks} names some outside 0…{core.size() - 1}, those of this job")
    if ranks in others:
        raise ValueError(f"a process set of ranks {ranks} is given twice")
    number = _find(ranks)
    if number is not None:
        raise ValueError(f"a process set of ranks {ranks} exists already, with id {number}")


def _add(ranks: list[int], mine: list[ProcessSet]) -> None:
    handle = session.core.add_process_set(ranks)
    handle.wait()
    for each in mine:
        each.process_set_id = handle.number()
        _registered.append(each)


def remove_process_set(process_set: ProcessSet) -> bool:
    """Takes a set away. Collective over all ranks. False for the global set and for one that is not registered."""
    number = process_set.process_set_id
    if number is None or number == GLOBAL:
        return False
    session.core.remove_process_set(number).wait()
    for each in [process_set, *_registered]:
        if each.process_set_id == number:
            each.process_set_id = None
    _registered[:] = [each for each in _registered if each.process_set_id is not None]
    return True


def registered_set(ranks: Sequence[int]) -> ProcessSet | None:
    """The registered set of exactly these ranks, given in ascending order."""
    return next((each for each in _registered if each.ranks == list(ranks)), None)


def _begin() -> None:
    """A new session knows the world only."""
    global_process_set.ranks = list(range(session.core.size()))
    global_process_set.mpi_comm = None
    for process_set in _registered:
        process_set.process_set_id = None
    _registered.clear()


session.on_start(_begin)
