"""A group in which devices have backends of their own, such as `cpu:gloo,cuda:perseus`.

torch keeps the backends of such a group in a C++ object, which holds C++ backends only. A DeviceGroups takes its place:
it gives each call to a PerseusGroup, or to torch's group with the other backends, by the device of the call's tensors.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from perseus_like_autoload import as_gloo
from perseus_like_autoload import compat as autoload_compat
from torch.distributed.distributed_c10d import Store

from ..compat import process_groups
from ..compat.construction import Construction, make_others, set_name, under_construction
from ..compat.dynamo import without_dynamo
from .backend import can_create, create_group
from .group_identity import GroupIdentity
from .numbered_group import delegates
from .process_group import PerseusGroup, group_of_name

_log = logging.getLogger("perseus_like")
_ProcessGroup: Any = dist.ProcessGroup


def _delegate(name: str, place: int) -> Callable[..., Any]:
    """Returns the method of a collective, which calls the group for the device of its tensors."""

    def call(self: DeviceGroups, *arguments: Any, **options: Any) -> Any:
        given = arguments[place] if place < len(arguments) else next(iter(options.values()))
        while not isinstance(given, torch.Tensor):
            given = given[0]
        return getattr(self.part_for(given.device.type).group, name)(*arguments, **options)

    call.__name__ = name
    return without_dynamo(call)


def create(options: Any, backend_options: Any, name: str) -> Any:
    """Makes a group. torch calls this on the members of a new group; `name` is the registered name of the backend."""
    making = under_construction()
    if name == as_gloo.NAME and making is not None and not can_create(options):
        return _gloo_itself(making, options)
    if making is None or set(making.backends.values()) == {name}:
        return _named(_create_ours(options, backend_options, name), options)
    others = _others(making, options, name)
    ours = _named(_create_ours(options, backend_options, name), options)
    mine = dict.fromkeys((kind for kind, backend in making.backends.items() if backend == name), Part(ours, ours))
    ours.part = next(iter(mine))
    parts = {kind: mine.get(kind) or others[kind] for kind in making.backends}
    group = DeviceGroups(making.store, options.group_rank, options.group_size, parts)
    group.bound_device_id = getattr(making.group, "bound_device_id", None)
    if name == as_gloo.NAME:  # torch names a group of several backends after NCCL if there is one
        group._backend_name = "nccl" if "nccl" in making.backends.values() else "gloo"
    return _named(group, options)


def _create_ours(options: Any, backend_options: Any, name: str) -> PerseusGroup:
    group = create_group(options, backend_options)
    if name == as_gloo.NAME:
        group._backend_name = "gloo"
    return group


def _gloo_itself(making: Construction, options: Any) -> Any:
    """Returns torch's own group, for some ranks of a job whose default group is of another backend."""
    _warn_once()
    asked = {kind: "gloo" if backend == as_gloo.NAME else backend for kind, backend in making.backends.items()}
    with autoload_compat.unmapped(dist):
        group = make_others(making, options, "gloo" if set(asked.values()) == {"gloo"} else asked)
    set_name(group, options.group_id)
    return group


@functools.cache
def _warn_once() -> None:
    _log.warning(
        "PERSEUS_AS_GLOO: new_group(backend='gloo') for some of the ranks makes a group of gloo itself, because the "
        "default group has another backend and no group of perseus has all ranks yet. Make the default group with "
        "init_process_group('cpu:gloo,cuda:nccl'), or call perseus_like.torch.init() on all ranks before"
    )


def _named(group: Any, options: Any) -> Any:
    """Names the group. torch names groups later, and before 2.2 not at all."""
    group.setGroupName(options.group_id)
    return group


def _others(making: Construction, options: Any, name: str) -> dict[str, Part]:
    """Returns the other backends. torch has made those before the first one of ours, and this makes the rest."""
    kinds = list(making.backends)
    first = list(making.backends.values()).index(name)
    made = dict.fromkeys(kinds[:first], making.group)
    rest = {kind: making.backends[kind] for kind in kinds[first:] if making.backends[kind] != name}
    if rest:
        made.update(dict.fromkeys(rest, make_others(making, options, rest)))
    return {kind: Part(group, process_groups.backend_of(group, kind)) for kind, group in made.items()}


class Part(NamedTuple):
    """The group that executes the calls for a device type, and its backend, which torch may ask for."""

    group: Any
    backend: Any


_Delegates: Any = delegates(PerseusGroup, _delegate)


class DeviceGroups(GroupIdentity, _Delegates, _ProcessGroup):  # type: ignore[misc]
    """Returned to torch in place of a PerseusGroup if the group has other backends as well."""

    _backend_name = "perseus beside others"

    def __init__(self, store: Store, rank: int, size: int, parts: dict[str, Part]) -> None:
        super().__init__(rank, size)
        self._store = store
        self._rank = rank
        self._size = size
        self._parts = parts  # by device type

    def part_for(self, device_type: str) -> Part:
        part = self._parts.get(device_type)
        if part is None:
            raise RuntimeError(
                f"No backend type associated with device type {device_type}: the process group {self._group_name!r} "
                f"was made for {', '.join(self._parts)}; name a backend for {device_type} as well, or move the tensor"
            )
        return part

    @property
    def parts(self) -> dict[str, Any]:
        """Returns the groups by device type."""
        return {kind: part.group for kind, part in self._parts.items()}

    @property
    def job_ranks(self) -> list[int]:
        """Returns the members' ranks in the job, in the group's order."""
        return next(group.job_ranks for group in self._groups if getattr(group, "is_of_perseus", False))

    def __reduce__(self) -> Any:
        """A group is pickled as its name: in a process that has no such group, unpickling fails."""
        return group_of_name, (self._group_name, self.job_ranks)

    @property
    def _groups(self) -> list[Any]:
        return list(dict.fromkeys(part.group for part in self._parts.values()))

    @property
    def _backends(self) -> list[Any]:
        return list(dict.fromkeys(part.backend for part in self._parts.values()))

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._group_name = name
        for group in self._groups:
            set_name(group, name)

    # Queries of torch.
    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(kind) for kind in self._parts]

    def _get_backend(self, device: torch.device) -> Any:
        return self.part_for(device.type).backend

    def _get_sequence_number_for_group(self) -> int:
        return process_groups.sequence_number(self._backends[0])

    @without_dynamo
    def barrier(self, opts: Any = None, *arguments: Any, **options: Any) -> Any:
        """Starts a barrier on the device in the options, or else on the group's first one."""
        device = getattr(opts, "device", None)
        part = self.part_for(device.type if device is not None else next(iter(self._parts)))
        return part.group.barrier(*(() if opts is None else (opts,)), *arguments, **options)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Runs on the CPU's backend."""
        group = self.part_for("cpu").group
        if timeout is None:
            group.monitored_barrier(wait_all_ranks=wait_all_ranks)
        else:
            group.monitored_barrier(timeout, wait_all_ranks)

    def set_timeout(self, timeout: timedelta) -> None:
        for backend in self._backends:
            process_groups.set_timeout(backend, timeout)

    _set_default_timeout = set_timeout

    def _start_coalescing(self, device: torch.device) -> None:
        self.part_for(device.type).group._start_coalescing(device)

    def _end_coalescing(self, device: torch.device) -> Any:
        return self.part_for(device.type).group._end_coalescing(device)

    @without_dynamo
    def shutdown(self) -> None:
        self._end("shutdown")

    @without_dynamo
    def abort(self) -> None:
        self._end("abort")

    def _end(self, how: str) -> None:
        for backend in self._backends:
            # Before torch 2.6, some of torch's backends have no such method: they end when the group is destroyed.
            getattr(backend, how, lambda: None)()
