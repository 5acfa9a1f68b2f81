"""Process groups of the backend `perseus`: the session below them, and the group in the core."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from perseus_like.errors import UnavailableError
from perseus_like.launchers import launched
from perseus_like.session import session

from ..compat.stores import below_restarts
from ..native_group import warn_of_other_releases
from .process_group import PerseusGroup
from .rendezvous import StoreRendezvous
from .torch_setup import prepare_torch, restart_count, warn_of_nan_checks

HOLDER = "torch.distributed"
_NO_LIMIT = timedelta(days=30)


def create_group(options: Any, backend_options: Any = None) -> PerseusGroup:
    """Makes a group. torch calls this on the members of a new group, with its `_DistributedBackendOptions`."""
    restarts = restart_count()
    return make_group(
        below_restarts(options.store, restarts) if restarts else options.store,
        options.group_rank,
        options.group_size,
        options.timeout,
        ranks=list(options.global_ranks_in_group),
        name=str(options.group_id),
    )


def can_create(options: Any) -> bool:
    """Returns whether `create_group` would make a group of these ranks. All of its members get the same answer."""
    ranks = list(options.global_ranks_in_group)
    return not ranks or session.is_running() or len(ranks) == dist.get_world_size()


def make_group(
    store: Store, rank: int, size: int, timeout: timedelta, *, ranks: Sequence[int] = (), name: str = "world"
) -> PerseusGroup:
    """Makes a group through `store`. Collective over its members; an error of one member reaches the others.

    `ranks`: the members of a group inside the job, by their ranks there; empty: the group is the job.
    """
    prepare_torch()
    if rank == 0:
        warn_of_nan_checks()
        warn_of_other_releases()
    if ranks and not session.is_running():
        _check_below_other_backend(ranks)  # on all members alike
    rendezvous = StoreRendezvous(store, f"perseus/{name}", rank, size, _start_limit(timeout))
    try:
        if not ranks or not session.is_running():
            _start_session(rendezvous, rank, size)
        number = session.core.add_group(list(ranks) or list(range(size)), rendezvous, timeout.total_seconds())
    except Exception as error:
        rendezvous.fail(error)
        raise
    return PerseusGroup(store, number, rank, size, timeout, is_default=not ranks)


def _start_limit(timeout: timedelta) -> timedelta:
    return min(timeout, _NO_LIMIT)


def _check_below_other_backend(ranks: Sequence[int]) -> None:
    if len(ranks) != dist.get_world_size():
        raise UnavailableError(
            f"new_group(ranks={list(ranks)}, backend='perseus') beside a default group of another backend: the first "
            "such group must have all ranks. Make the default group with init_process_group('perseus'), or call "
            "perseus_like.torch.init() on all ranks before"
        )


def _start_session(rendezvous: StoreRendezvous, rank: int, size: int) -> None:
    """Uses the running session, or starts one by the launcher or by the store. All ranks choose the same."""
    core = session.core
    running = [core.rank(), core.size()] if session.is_running() else None
    launcher = launched()
    mine = {"running": running, "launched": launcher and [launcher.rank, launcher.size]}
    states = [json.loads(each) for each in rendezvous(json.dumps(mine).encode())]
    have = [each["running"] for each in states]
    without = [number for number, each in enumerate(have) if each is None]
    if not without:
        if have != [[number, size] for number in range(size)]:
            raise UnavailableError(
                f"init_process_group('perseus'): the session that init() has started has other ranks. By rank of the "
                f"process group, as [rank, size]: {have}"
            )
        session.start({}, holder=HOLDER)
        return
    if len(without) < size:
        raise UnavailableError(
            f"init_process_group('perseus'): ranks {without} have not called perseus_like's init(), the others have. "
            "Call it on all ranks or on none"
        )
    if all(_fits(each["launched"], number, size) for number, each in enumerate(states)):
        session.start({}, holder=HOLDER)
    else:
        session.start({}, rendezvous=(rank, size, rendezvous), lost=rendezvous.lost, holder=HOLDER)


def _fits(found: list[int] | None, rank: int, size: int) -> bool:
    """Returns whether the launcher started the job of this group. Some launchers do not tell a process its rank."""
    return found is not None and found[0] in (rank, -1) and found[1] in (size, -1)
