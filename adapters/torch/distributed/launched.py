"""The session of `init` under torchrun, and under launchers that set its variables: ranks meet by torch's store."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from perseus_like.session import session

from ..compat.stores import below_restarts
from .rendezvous import StoreRendezvous
from .torch_setup import restart_count

_stores: list[Store] = []  # rank 0 may serve the store, which the other ranks read until they have met


def start(rank: int, size: int, seconds: float) -> bool:
    """Starts a session of these ranks, which have this time to come. Returns True if it has started one. Collective."""
    limit = timedelta(seconds=seconds)
    store, _, _ = next(dist.rendezvous("env://", rank, size, timeout=limit))
    _stores.append(store)
    restarts = restart_count()
    rendezvous = StoreRendezvous(
        below_restarts(store, restarts) if restarts else store, "perseus/init", rank, size, limit
    )
    try:
        return session.start({}, rendezvous=(rank, size, rendezvous), lost=rendezvous.lost)
    except Exception as error:
        rendezvous.fail(error)
        raise
