"""Process sets: subsets of the job's ranks that communicate among themselves, with the API of Horovod."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from .session import session

GLOBAL = 0


def as_ranks(what: str, given: Iterable[int]) -> list[int]:
    """Returns `given` as a list of integers. ValueError, which names `what`, if a value is not a whole number."""
    try:
        return [operator.index(rank) for rank in given]
    except TypeError:
        raise ValueError(f"{what} takes a list of ranks or an mpi4py communicator, not {given!r}") from None


class ProcessSet:
    """Some ranks of the job, in ascending order. Has an id once `init` or `add_process_set` has registered it.

    Args:
        ranks_or_comm: the ranks, or an mpi4py communicator (any object with `allgather`). The ranks of a communicator
            are looked up at registration.

    Raises:
        ValueError: the argument is neither whole numbers nor a communicator.

    Examples:
        >>> first_two = hvd.ProcessSet([0, 1])
        >>> first_two.ranks
        [0, 1]
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
        """Returns True if this process is in the set, None while the ranks are not known."""
        return None if not self.ranks else session.core.rank() in self.ranks

    def rank(self) -> int | None:
        """Returns the rank of this process within the set, None if the set is not registered.

        ValueError if this process is not in the set.
        """
        if self.process_set_id is None or self.ranks is None:
            return None
        return self.rank_within(session.core.rank())

    def rank_within(self, global_rank: int) -> int:
        """Returns the rank that `global_rank` has in this set. ValueError if it is not in the set."""
        if self.ranks is None or global_rank not in self.ranks:
            raise ValueError(f"rank {global_rank} is not in {self}")
        return self.ranks.index(global_rank)

    def size(self) -> int | None:
        """Returns the number of ranks, None if the set is not registered."""
        return None if self.process_set_id is None or self.ranks is None else len(self.ranks)

    def require_id(self) -> int:
        """Returns the id under which the core knows the set. ValueError if the set is not registered."""
        if self.process_set_id is None:
            raise ValueError(f"{self} is not registered; pass it to init(process_sets=…) or add_process_set()")
        return self.process_set_id

    def __deepcopy__(self, memo: dict[int, Any]) -> ProcessSet:
        """Returns the set itself: a copied model keeps its ranks and their id."""
        return self

    def __reduce__(self) -> Any:
        return "global_process_set" if self is global_process_set else object.__reduce__(self)

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"

    __repr__ = __str__


global_process_set = ProcessSet([])
global_process_set.process_set_id = GLOBAL

_registered: list[ProcessSet] = []
_internal: list[ProcessSet] = []  # sets that this package has registered for itself


def registered_ranks() -> dict[int, list[int]]:
    """Returns the ranks of every set that the program has registered, by its id. The id of the global set is 0."""
    core = session.core
    hidden = {each.process_set_id for each in _internal}
    return {number: list(core.process_set_ranks(number)) for number in core.process_set_ids() if number not in hidden}


def find_id(ranks: Sequence[int] | None) -> int | None:
    """Returns the id of the registered set of exactly these ranks, which are in ascending order."""
    return next((number for number, known in registered_ranks().items() if known == ranks), None)


def registered_set(ranks: Sequence[int]) -> ProcessSet | None:
    """Returns a registered object of exactly these ranks, which are in ascending order. It may be an internal one."""
    return next((each for each in (*_registered, *_internal) if each.ranks == list(ranks)), None)


def add_internal(ranks: Sequence[int]) -> ProcessSet:
    """Registers a set that the program does not see, and may register, too. Collective over all ranks of the job."""
    handle = session.core.add_process_set(list(ranks))
    handle.wait()
    new = ProcessSet(ranks)
    new.process_set_id = handle.number()
    _internal.append(new)
    return new


def remember(process_set: ProcessSet, process_set_id: int) -> None:
    """Sets the id of `process_set` to the one by which the core knows its ranks."""
    process_set.process_set_id = process_set_id
    if process_set not in _registered:
        _registered.append(process_set)


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a set. Collective over all ranks of the job.

    Args:
        process_set: a registered set. No collective may be in flight in it.

    Returns:
        True, or False for the global set and for an unregistered one, which have no effect.

    Raises:
        HorovodInternalError: the ranks passed different sets (DisagreementError), or a rank has ended (PeerLostError).

    Examples:
        >>> hvd.remove_process_set(hvd.global_process_set)
        False
    """
    number = process_set.process_set_id
    if number is None or number == GLOBAL:
        return False
    session.core.remove_process_set(number).wait()
    for each in [process_set, *_registered]:
        if each.process_set_id == number:
            each.process_set_id = None
    _registered[:] = [each for each in _registered if each.process_set_id is not None]
    return True


def _forget_sets() -> None:
    """Resets the table of sets: a new session has the global set only."""
    global_process_set.ranks = list(range(session.core.size()))
    global_process_set.mpi_comm = None
    for process_set in (*_registered, *_internal):
        process_set.process_set_id = None
    _registered.clear()
    _internal.clear()


session.on_start(_forget_sets)
