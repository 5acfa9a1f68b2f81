"""The session of `init` under torchrun, and under launchers that set its variables: ranks meet by torch's store."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from perseus_like.errors import TimedOutError
from perseus_like.session import session

from ..compat.stores import below_restarts
from .rendezvous import StoreRendezvous
from .torch_setup import restart_count

_stores: list[Store] = []  # rank 0 may serve the store, which the other ranks read until they have met


def start(rank: int, size: int, seconds: float) -> bool:
    """Starts a session of these ranks, which have this time to come. Returns True if it has started one. Collective."""
    limit = timedelta(seconds=seconds)
    try:
        store, _, _ = next(dist.rendezvous("env://", rank, size, timeout=limit))  # type: ignore[attr-defined]
    except RuntimeError as error:
        raise TimedOutError(
            f"init(): rank {rank} of {size} does not meet the others by torch's store at MASTER_ADDR and MASTER_PORT "
            f"({error}). All ranks call init() within {seconds:g} s (PERSEUS_START_TIMEOUT), and rank 0 or torchrun's "
            "agent must be reachable"
        ) from error
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
