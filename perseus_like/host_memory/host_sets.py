"""Process sets that follow the hosts: the ranks of one host, and ranks of which each host has one."""

from __future__ import annotations

from ..collectives.arguments import member_id
from ..process_sets import ProcessSet, add_internal, global_process_set, registered_set
from ..session import session


def ranks_of_hosts() -> list[list[int]]:
    """Returns the ranks of each host. Ranks, and the first ranks of hosts, ascend."""
    hosts: list[list[int]] = session.core.ranks_of_hosts()
    return hosts


def is_on_one_host(process_set: ProcessSet) -> bool:
    """Returns whether all ranks of the set are on this host."""
    member_id(process_set)
    mine = set(process_set.ranks or [0])
    return any(mine <= set(ranks) for ranks in ranks_of_hosts())


def host_process_set() -> ProcessSet:
    """Returns the ranks of this host. The first call of a session is collective: it registers a set per host."""
    known = _host.get(session.generation)
    if known is None or known.process_set_id is None:
        _host.clear()
        sets = [_registered(ranks) for ranks in ranks_of_hosts()]  # every rank takes part in each registration
        known = _host[session.generation] = next(each for each in sets if each.included())
    return known


def leaders_process_set() -> ProcessSet:
    """Returns the lowest rank of each host. The first call of a session is collective over the job."""
    known = _leaders.get(session.generation)
    if known is None or known.process_set_id is None:
        _leaders.clear()
        known = _leaders[session.generation] = _registered(sorted(min(ranks) for ranks in ranks_of_hosts()))
    return known


def _registered(ranks: list[int]) -> ProcessSet:
    if len(ranks) == session.core.size():
        return global_process_set
    return registered_set(ranks) or add_internal(ranks)


_host: dict[int, ProcessSet] = {}  # the keys are generations of the session
_leaders: dict[int, ProcessSet] = {}
