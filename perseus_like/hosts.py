"""The ranks of one host as a process set."""

from __future__ import annotations

from collections.abc import Sequence

from .objects import allgather_object
from .process_sets import ProcessSet, add_process_set, global_process_set, registered_set
from .session import session


def ranks_by_host(places: Sequence[tuple[int, int, int]]) -> list[list[int]]:
    """The ranks of each host, from every rank's (local rank, local size, cross rank).

    A cross rank counts the hosts that have a rank of the same local rank, which are fewer where hosts are uneven.
    """
    sizes = [size for _, size in sorted((cross, size) for local, size, cross in places if local == 0)]
    hosts: list[list[int]] = [[] for _ in sizes]
    for rank, (local, _, cross) in enumerate(places):
        having = [host for host, size in enumerate(sizes) if size > local]
        hosts[having[cross]].append(rank)
    return hosts


def host_process_set() -> ProcessSet:
    """The ranks of this host. The first call of a session is collective over the job: it registers a set per host."""
    known = _mine.get(session.generation)
    if known is None or known.process_set_id is None:
        _mine.clear()
        known = _mine[session.generation] = _register()
    return known


def _register() -> ProcessSet:
    core = session.core
    if core.local_size() == core.size():
        return global_process_set
    hosts = ranks_by_host(allgather_object((core.local_rank(), core.local_size(), core.cross_rank())))
    sets = [registered_set(ranks) or add_process_set(ranks) for ranks in hosts]
    return next(each for each in sets if each.included())


_mine: dict[int, ProcessSet] = {}  # by generation of the session
