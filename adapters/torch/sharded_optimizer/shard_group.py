"""The ranks that train with one sharded optimizer, on one host or on several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perseus_like.errors import UnavailableError
from perseus_like.host_memory.host_sets import host_process_set, is_on_one_host, ranks_of_hosts
from perseus_like.process_sets import GLOBAL, ProcessSet, registered_set

from ..parameter_memory import Named
from ..tensors import collectives


@dataclass(frozen=True)
class ShardGroup:
    """All ranks, and those of this host, which divide the elements among themselves."""

    everyone: ProcessSet
    host: ProcessSet
    hosts: Sequence[Sequence[int]]  # the places in `everyone` of each host's ranks

    @staticmethod
    def of(process_set: ProcessSet) -> ShardGroup:
        """Finds the ranks. Collective over the set.

        UnavailableError, the same on all ranks, if the set has some of the ranks of several hosts, and those of one
        host are not registered as a set.
        """
        if is_on_one_host(process_set):
            return ShardGroup(process_set, process_set, [range(process_set.size() or 1)])
        everyone = process_set.ranks or []
        parts = [[rank for rank in ranks if rank in everyone] for ranks in ranks_of_hosts()]
        parts = [part for part in parts if part]
        places = [[everyone.index(rank) for rank in part] for part in parts]
        if process_set.process_set_id == GLOBAL:
            return ShardGroup(process_set, host_process_set(), places)
        hosts = [_registered(part, process_set) for part in parts]
        return ShardGroup(process_set, next(each for each in hosts if each.included()), places)

    @property
    def has_several_hosts(self) -> bool:
        return len(self.hosts) > 1

    def spread_first_values(self, named: Sequence[Named], name: str) -> None:
        """Gives the parameters of each host the values of rank 0. Ranks of one host take those of its first rank."""
        if not self.has_several_hosts:
            return
        sent = [
            collectives.broadcast(each.detach(), 0, f"{name}.first.{number}", self.everyone, in_place=True)
            for number, (_, each) in enumerate(named)
        ]
        for each in sent:
            each.result()

    def places_on_host(self, present: Sequence[int]) -> tuple[int, ...]:
        """Returns the places in `host` of those ranks of this host whose places in `everyone` are given."""
        mine = next(places for places in self.hosts if (self.everyone.rank() or 0) in places)
        return tuple(number for number, place in enumerate(mine) if place in present)

    def hosts_with(self, present: Sequence[int]) -> int:
        """Returns the number of hosts that have one of the ranks with these places in `everyone`."""
        return sum(any(place in present for place in places) for places in self.hosts)


def _registered(ranks: list[int], process_set: ProcessSet) -> ProcessSet:
    found = registered_set(ranks)
    if found is None:
        raise UnavailableError(
            f"ZeroRedundancyOptimizer: {process_set} has some ranks of several hosts, and those of each host share "
            f"memory, so they have to be a process set, too; call add_process_set({ranks}) on all ranks of the job"
        )
    return found
