"""Settings of torch, and its changes before the first process group of this library is made."""

from __future__ import annotations

import functools
import logging
import os
from typing import Any

from ..compat import process_groups
from .ddp_buckets import SharedBucketGroup

_log = logging.getLogger("perseus_like")
_NAN_CHECKS = ("TORCH_DIST_NAN_CHECK", "TORCH_NAN_CHECK", "TORCH_NCCL_NAN_CHECK")


@functools.cache
def prepare_torch() -> None:
    """Changes torch, once in a process."""
    process_groups.skip_flight_recorder(_is_ours)
    process_groups.keep_awaited_works()
    process_groups.replace_groups_of_reducers(_group_of_buckets)
    process_groups.shut_down_destroyed_groups(_is_ours)
    process_groups.accept_monitored_barrier(_is_ours)


@functools.cache
def warn_of_nan_checks() -> None:
    """Warns about each of torch's NaN checks that is asked for: torch runs them in its C++ backends only."""
    for name in _NAN_CHECKS:
        if os.environ.get(name, "0") not in ("", "0"):
            _log.warning(
                "%s has no effect on process groups of 'perseus'. PERSEUS_ALLREDUCE_NANCHECK=2 fails an allreduce of a "
                "NaN or an infinity on all ranks and names the tensor, 1 warns",
                name,
            )


def restart_count() -> str | None:
    """Returns how often torchrun's agent of this rank has restarted its ranks; None without torchrun."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT")


def _group_of_buckets(group: Any) -> Any:
    """Returns the group that reduces the buckets of a DistributedDataParallel of `group`."""
    on_the_host = getattr(group, "parts", {"cpu": group}).get("cpu")
    return SharedBucketGroup(group) if _is_ours(on_the_host) else group


def _is_ours(group: Any) -> bool:
    return getattr(group, "is_of_perseus", False)
