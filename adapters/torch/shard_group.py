"""The ranks that train with one sharded optimizer, on one host or on several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from perseus_like.arguments import member_id
from perseus_like.collectives import Sum
from perseus_like.errors import UnavailableError
from perseus_like.host_memory import is_on_one_host
from perseus_like.hosts import host_process_set, peers_process_set
from perseus_like.process_sets import GLOBAL, ProcessSet
from perseus_like.session import session

from .autograd import verbs
from .parameter_memory import Named


@dataclass(frozen=True)
class ShardGroup:
    """All ranks, those of this host, and those with this rank's shard on other hosts (None if there are none)."""

    everyone: ProcessSet
    host: ProcessSet
    peers: ProcessSet | None

    @staticmethod
    def of(process_set: ProcessSet) -> ShardGroup:
        """Finds the ranks. Collective over the set.

        UnavailableError if the set has some of the ranks of several hosts, or hosts have different numbers of ranks.
        """
        member_id(process_set)
        if is_on_one_host(process_set):
            return ShardGroup(process_set, process_set, None)
        if process_set.process_set_id != GLOBAL:
            raise UnavailableError(
                f"ZeroRedundancyOptimizer: {process_set} has some ranks of several hosts; use all ranks of the job, or "
                "ranks of one host"
            )
        if not session.core.is_homogeneous():
            raise UnavailableError(
                "ZeroRedundancyOptimizer: the hosts have different numbers of ranks, so their shards differ; start "
                "equally many ranks on each host, or use DistributedOptimizer without shard=True"
            )
        return ShardGroup(process_set, host_process_set(), peers_process_set())

    def spread_first_values(self, named: Sequence[Named], name: str) -> None:
        """Gives the parameters of each host's first rank the values of rank 0."""
        if self.peers is None or self.host.rank() != 0:
            return
        root = min(self.peers.ranks or [0])
        sent = [
            verbs.broadcast(each.detach(), root, f"{name}.first.{number}", self.peers, in_place=True)
            for number, (_, each) in enumerate(named)
        ]
        for each in sent:
            each.result()

    def add_between_hosts(self, shard: list[torch.Tensor], name: str) -> None:
        """Replaces the elements of this rank's shard by their sums over the hosts. Collective over all ranks."""
        if self.peers is not None and shard:
            verbs.grouped_allreduce(shard, Sum, f"{name}.between", 1.0, 1.0, self.peers, in_place=True).result()
