"""The environment variables that give a rank its numbers. Needs the standard library only."""

from __future__ import annotations

import bisect
import itertools
import os
from collections.abc import Sequence

# Tells the ranks of a perseusrun without MPI where they meet: the host of rank 0, a port number, and a secret.
TCP_RENDEZVOUS = "PERSEUS_TCP_RENDEZVOUS"
RANK_FACTS = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")


def set_horovod_variables(rank: int, ranks_per_host: Sequence[int]) -> None:
    """Sets HOROVOD_RANK and the others in this process."""
    os.environ.update(rank_variables("HOROVOD", rank, ranks_per_host))


def host_of(rank: int, ranks_per_host: Sequence[int]) -> int:
    """Returns the number of a rank's host in a job that fills its hosts in order."""
    return bisect.bisect_right([*itertools.accumulate(ranks_per_host)], rank)


def rank_variables(prefix: str, rank: int, ranks_per_host: Sequence[int]) -> dict[str, str]:
    """Returns `PREFIX_RANK`, `PREFIX_SIZE`, … of a rank in a job that fills its hosts in order."""
    host = host_of(rank, ranks_per_host)
    local_rank = rank - sum(ranks_per_host[:host])
    with_this_local_rank = [number for number, ranks in enumerate(ranks_per_host) if ranks > local_rank]
    values = (
        rank,
        sum(ranks_per_host),
        local_rank,
        ranks_per_host[host],
        with_this_local_rank.index(host),
        len(with_this_local_rank),
    )
    return {f"{prefix}_{fact}": str(value) for fact, value in zip(RANK_FACTS, values, strict=True)}
