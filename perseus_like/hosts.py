"""Process sets that follow the hosts: the ranks of one host, and ranks of which each host has one."""

from __future__ import annotations

from collections.abc import Sequence

from .objects import allgather_object
from .process_set_registration import add_process_set
from .process_sets import ProcessSet, global_process_set, registered_set
from .session import session


def ranks_by_host(numbers: Sequence[tuple[int, int, int]]) -> list[list[int]]:
    """Returns the ranks of each host, from every rank's (local rank, local size, cross rank).

    A cross rank counts only the hosts that have a rank of the same local rank. If hosts have different numbers of
    ranks, the same host has different cross ranks for different local ranks.
    """
    sizes = [size for _, size in sorted((cross, size) for local, size, cross in numbers if local == 0)]
    hosts: list[list[int]] = [[] for _ in sizes]
    for rank, (local, _, cross) in enumerate(numbers):
        having = [host for host, size in enumerate(sizes) if size > local]
        hosts[having[cross]].append(rank)
    return hosts


def host_process_set() -> ProcessSet:
    """Returns the ranks of this host. The first call of a session is collective: it registers a set per host."""
    known = _host.get(session.generation)
    if known is None or known.process_set_id is None:
        _host.clear()
        sets = [_registered(ranks) for ranks in _hosts()]  # every rank takes part in each registration
        known = _host[session.generation] = next(each for each in sets if each.included())
    return known


def leaders_process_set() -> ProcessSet:
    """Returns the lowest rank of each host. The first call of a session is collective over the job."""
    known = _leaders.get(session.generation)
    if known is None or known.process_set_id is None:
        _leaders.clear()
        known = _leaders[session.generation] = _registered(sorted(min(ranks) for ranks in _hosts()))
    return known


def peers_process_set() -> ProcessSet:
    """Returns the ranks that have this rank's place in the order of their host, one of each host.

    The hosts have equally many ranks. The first call of a session is collective over the job.
    """
    known = _peers.get(session.generation)
    if known is None or known.process_set_id is None:
        _peers.clear()
        sets = [_registered(sorted(ranks)) for ranks in zip(*_hosts(), strict=True)]
        known = _peers[session.generation] = next(each for each in sets if each.included())
    return known


def _hosts() -> list[list[int]]:
    core = session.core
    if core.local_size() == core.size():
        return [list(range(core.size()))]
    return ranks_by_host(allgather_object((core.local_rank(), core.local_size(), core.cross_rank())))


def _registered(ranks: list[int]) -> ProcessSet:
    if len(ranks) == session.core.size():
        return global_process_set
    return registered_set(ranks) or add_process_set(ranks)


_host: dict[int, ProcessSet] = {}  # the keys are generations of the session
_leaders: dict[int, ProcessSet] = {}
_peers: dict[int, ProcessSet] = {}
