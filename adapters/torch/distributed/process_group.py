"""The process group `perseus` as torch sees it: a ProcessGroup in Python over a group of the core."""

from __future__ import annotations

import logging
from datetime import timedelta
from functools import cache, cached_property
from typing import Any

import torch
from torch.distributed.distributed_c10d import Store

from perseus_like.errors import NotInitializedError
from perseus_like.process_sets import ProcessSet, global_process_set
from perseus_like.session import session

from ..compat.dynamo import without_dynamo
from ..compat.process_groups import find_group
from ..native_group import native
from .group_identity import GroupIdentity
from .unsupported import UnsupportedByGroups
from .verbs.gathers import Gathers
from .verbs.monitored_barrier import MonitoredBarrier
from .verbs.reduce_verbs import Reductions
from .works import MARGIN_SECONDS, Works
from .works.native_works import executed_natively

_log = logging.getLogger("perseus_like")
# destroy_process_group waits for the other ranks' answers for this time.
_GRACE_SECONDS = 1.0
# An abort waits for this time. The other ranks only have to receive it.
_ABORT_GRACE_SECONDS = 0.2


def group_of_name(name: str, job_ranks: list[int], part: str = "") -> Any:
    """Returns this process's group of a pickled group's name, or its part for a device type."""
    group = find_group(name)
    if group is not None and part:
        group = getattr(group, "parts", {}).get(part)
    if group is None or getattr(group, "job_ranks", None) != job_ranks:
        raise LookupError(
            f"the pickled process group {name!r} of ranks {job_ranks} does not exist in this process; make it with "
            "init_process_group or new_group before you unpickle it"
        )
    return group


@cache
def _devices() -> list[torch.device]:
    """Returns the device types, the CPU first, because torch communicates objects on the first one."""
    return [torch.device(kind) for kind in ("cpu", "cuda") if kind == "cpu" or torch.cuda.is_available()]


@executed_natively
class PerseusGroup(GroupIdentity, UnsupportedByGroups, Reductions, Gathers, MonitoredBarrier):
    """A process group of torch, which makes it on the members only. torch asks every group for names and options."""

    supports_coalescing = False
    supports_time_estimate = False
    _supports_time_estimate = False  # its name since torch 2.15
    supports_shrinking = False
    supports_reconfigure = False
    supports_window = False
    supports_abort_hooks = False
    supports_completion_hooks = False
    use_pg_for_symm_mem_rendezvous = False
    part = ""  # the device type that this group serves in a DeviceGroups

    def __init__(
        self, store: Store, number: int, rank: int, size: int, timeout: timedelta, is_default: bool = False
    ) -> None:
        super().__init__(number, rank, size, timeout.total_seconds())
        self._store = store
        self._is_default = is_default
        self._generation = session.generation

    @cached_property
    def process_set(self) -> ProcessSet:
        """Returns the process set of the same ranks, for functions outside of torch.distributed."""
        if self._is_default:
            return global_process_set
        found = ProcessSet(self.job_ranks)
        found.ranks, found.process_set_id = list(self.job_ranks), self._number  # in the group's order
        return found

    @property
    def _device_types(self) -> list[torch.device]:
        return _devices()

    def supports_tensor_alloc(self, device: Any = None) -> bool:
        return False

    def _get_sequence_number_for_group(self) -> int:
        return self._calls if native is None else int(native.calls(self))

    def set_timeout(self, timeout: timedelta) -> None:
        """Changes the limit of this rank's waits from now on. The ranks' common limit stays that of the start."""
        self._timeout = timeout.total_seconds()
        if native is not None:
            native.set_limit(self, self._timeout + MARGIN_SECONDS)

    _set_default_timeout = set_timeout

    def _add_ephemeral_timeout(self, timeout: timedelta) -> None:
        """Warns and changes nothing, which torch allows: the ranks' common limit is the one of the start."""
        _log.warning(
            "the timeout of a process group of 'perseus' is not extended by %s: all of its ranks share the limit that "
            "it was made with; make it with a longer timeout",
            timeout,
        )

    def __reduce__(self) -> Any:
        """A group is pickled as its name: in a process that has no such group, unpickling fails."""
        return group_of_name, (self._group_name, self.job_ranks, self.part)

    # Calls inside a coalescing manager are submitted at once, because the core fuses them by itself. The manager
    # returns a work that is complete when they all are.
    def _start_coalescing(self, device: Any = None) -> None:
        self._coalesced = []
        if native is not None:
            native.set_coalescing(self, True)

    def _end_coalescing(self, device: Any = None) -> Works:
        works, self._coalesced = self._coalesced or [], None
        if native is not None:
            native.set_coalescing(self, False)
        return Works(works)

    @without_dynamo
    def shutdown(self) -> None:
        """Leaves the group. Work that all members have submitted before is executed."""
        self._leave(_GRACE_SECONDS)

    @without_dynamo
    def abort(self) -> None:
        """Leaves the group: work in progress fails, on the other members too. Thread-safe."""
        self._leave(_ABORT_GRACE_SECONDS)

    def _leave(self, grace: float) -> None:
        if session.is_running() and session.generation == self._generation:
            try:
                self._core.remove_group(self._number, grace)
            except NotInitializedError:
                return
            if self._is_default:
                session.release("torch.distributed")
