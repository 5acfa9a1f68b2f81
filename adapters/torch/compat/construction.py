"""Construction by torch of a process group with one backend for each device type."""

from __future__ import annotations

import contextlib
import sys
from types import FrameType
from typing import Any, NamedTuple

from torch.distributed import distributed_c10d

_HELPER = "_new_process_group_helper"


class Construction(NamedTuple):
    """The group that torch is making."""

    backends: dict[str, str]  # names of backends by device type, in the order in which torch makes them
    group: Any  # holds the backends that torch has made so far
    store: Any
    backend_options: Any


def under_construction() -> Construction | None:
    """Returns what torch is making in the call that this one is part of.

    Relies on: `distributed_c10d._new_process_group_helper`, which calls the creators of backends, and its local
    variables `backend_config`, `pg`, `prefix_store` and `backend_options` (`pg_options` before torch 2.3). A creator is
    not told for which devices it is called.
    Tried with: all.
    Notices: there is no such function among the callers, or it lacks one of these variables; then it returns None.
    Lost then: `cpu:gloo,cuda:perseus` makes a group of ours for all devices.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != _HELPER:
        frame = frame.f_back
    if frame is None:
        return None
    found = frame.f_locals
    try:
        backends = {kind: str(name) for kind, name in found["backend_config"].get_device_backend_map().items()}
        options = found.get("backend_options", found.get("pg_options"))
        return Construction(backends, found["pg"], found["prefix_store"], options)
    except (KeyError, AttributeError):
        return None


def make_others(making: Construction, options: Any, backends: dict[str, str] | str) -> Any:
    """Returns a group of torch's with these backends, which torch itself does not know of.

    `backends`: names by device type, or one name for all devices that it serves.

    Relies on: `distributed_c10d._new_process_group_helper(size, rank, ranks, backend, store, group_name=, timeout=)`,
    and the dictionaries of `distributed_c10d._world` in which it enters the group.
    Tried with: all.
    Notices: the call or the entries fail.
    Lost then: `cpu:perseus,cuda:nccl` fails with torch's TypeError or AttributeError.
    """
    helper: Any = getattr(distributed_c10d, _HELPER)
    keyword = "backend_options" if "backend_options" in helper.__code__.co_varnames else "pg_options"
    group, _ = helper(
        options.group_size,
        options.group_rank,
        list(options.global_ranks_in_group),
        backends if isinstance(backends, str) else ",".join(f"{kind}:{name}" for kind, name in backends.items()),
        making.store,
        group_name=f"{options.group_id}/others",
        timeout=options.timeout,
        **{keyword: making.backend_options},
    )
    _forget(group)
    return group


def _forget(group: Any) -> None:
    world: Any = distributed_c10d._world
    name = world.pg_names[group]
    for table in (world.pg_map, world.pg_names, world.pg_group_ranks, world.pg_backend_config):
        table.pop(group, None)
    for tag in (world.pg_to_tag.pop(group, None), ""):
        with contextlib.suppress(KeyError, ValueError):
            world.tags_to_pg[tag].remove(group)
    if hasattr(distributed_c10d, "_unregister_process_group"):  # since torch 2.2
        distributed_c10d._unregister_process_group(name)


def set_name(group: Any, name: str) -> None:
    """Names a group.

    Relies on: `ProcessGroup._set_group_name`, which also names the backends of the group.
    Tried with: all. torch 2.1 has no such method, and no names in its groups.
    Notices: the method is missing; then nothing is done.
    Lost then: torch's own log lines name the group by a number.
    """
    if hasattr(group, "_set_group_name"):
        group._set_group_name(name)
