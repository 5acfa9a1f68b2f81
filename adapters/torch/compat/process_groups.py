"""Functions of torch.distributed that expect a group of C++ backends, for a group in Python, and key-value stores."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

_GROUP_OF_REDUCER = 3
_groups_of_reducers: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
_awaited: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def skip_flight_recorder(is_ours: Callable[[Any], bool]) -> None:
    """Keeps torch from attaching its Flight Recorder to these groups.

    Relies on: `distributed_c10d._maybe_attach_flight_recorder(group, …)`, called for every new group since torch 2.15.
    Attaching fails on a group that has no C++ backend. The recorder sees calls of C++ backends only.
    Tried with: all; earlier releases do not attach it.
    Notices: the function is missing, and torch has `FlightRecorderHook` and `HealthCheckHook`.
    Lost then: `init_process_group("perseus")` fails with torch's error, unless TORCH_FR_BUFFER_SIZE=0 is set.
    """
    original: Any = getattr(distributed_c10d, "_maybe_attach_flight_recorder", None)
    if original is None:
        return

    @functools.wraps(original)
    def attach(group: Any, *arguments: Any, **options: Any) -> None:
        if not is_ours(group):
            original(group, *arguments, **options)

    distributed_c10d._maybe_attach_flight_recorder = attach  # type: ignore[attr-defined]


def find_group(name: str) -> Any:
    """Returns the process group of this name, or None.

    Relies on: `distributed_c10d._world.pg_names`, a dictionary from each group of this process to its name.
    Tried with: all.
    Notices: the dictionary is missing.
    Lost then: a pickled process group cannot be unpickled; the error is torch's AttributeError.
    """
    return next((group for group, known in distributed_c10d._world.pg_names.items() if known == name), None)


def keep_awaited_works() -> None:
    """Keeps the Python part of the work that DDP's backward pass waits for alive.

    Relies on: `Reducer._set_forward_pass_work_handle(work, …)`, by which `DistributedDataParallel.join()` hands a work
    to C++. C++ does not keep the Python part of it, and its base class waits for ever.
    Tried with: all.
    Notices: the method is missing; then nothing is done.
    Lost then: `DistributedDataParallel.join()` may wait without end.
    """
    cls: Any = dist.Reducer  # type: ignore[attr-defined]
    original = getattr(cls, "_set_forward_pass_work_handle", None)
    if original is None:
        return

    @functools.wraps(original)
    def set_and_keep(self: Any, work: Any, *arguments: Any, **options: Any) -> None:
        _awaited[self] = work
        original(self, work, *arguments, **options)

    cls._set_forward_pass_work_handle = set_and_keep


def replace_groups_of_reducers(group_for: Callable[[Any], Any]) -> None:
    """Makes DistributedDataParallel reduce its buckets through `group_for(group)` in place of its group.

    Relies on: `torch.distributed.Reducer`, the class of DDP's reducers in C++, whose fourth argument is the group.
    Tried with: all.
    Notices: no argument there is a process group; then the arguments stay as they are.
    Lost then: the buckets of torch's DistributedDataParallel stay in private memory, where reducing is slower.
    """
    cls: Any = dist.Reducer  # type: ignore[attr-defined]
    original = cls.__init__

    @functools.wraps(original)
    def make(self: Any, *arguments: Any, **options: Any) -> None:
        given = list(arguments)
        if len(given) > _GROUP_OF_REDUCER and isinstance(given[_GROUP_OF_REDUCER], dist.ProcessGroup):
            given[_GROUP_OF_REDUCER] = group_for(given[_GROUP_OF_REDUCER])
        original(self, *given, **options)
        # C++ does not keep the Python part of a group.
        _groups_of_reducers[self] = given[_GROUP_OF_REDUCER : _GROUP_OF_REDUCER + 1]

    cls.__init__ = make


def _shuts_down_groups() -> bool:
    """Returns True if torch's `destroy_process_group` calls the `shutdown` of groups."""
    return "shutdown" in inspect.unwrap(distributed_c10d.destroy_process_group).__code__.co_names


def shut_down_destroyed_groups(is_ours: Callable[[Any], bool]) -> None:
    """Calls the `shutdown` of groups that `destroy_process_group` forgets.

    Relies on: `destroy_process_group(group)`, and the dictionary `distributed_c10d._world.pg_map` of all groups.
    Tried with: all; torch 2.13 and later do this by themselves, torch 2.1 only forgets groups.
    Notices: the function of this torch calls no `shutdown`.
    Lost then: the session goes on after the group's end, and no group of other ranks can be made in its place.
    This holds for a program, too, that imports the function by its name before it makes its first group.
    """
    if _shuts_down_groups():
        return
    original: Any = distributed_c10d.destroy_process_group

    @functools.wraps(original)
    def destroy_process_group(group: Any = None) -> None:
        everything = group is None or group == distributed_c10d.GroupMember.WORLD
        groups = [*distributed_c10d._world.pg_map] if everything else [group]
        original(group)
        for each in reversed(groups):
            if is_ours(each):
                each.shutdown()

    distributed_c10d.destroy_process_group = destroy_process_group
    dist.destroy_process_group = destroy_process_group


def accept_monitored_barrier(is_ours: Callable[[Any], bool]) -> None:
    """Lets `torch.distributed.monitored_barrier` call the method of these groups.

    Relies on: `monitored_barrier(group, timeout, wait_all_ranks)` and `_get_default_group()` of `distributed_c10d`.
    torch's function refuses all backends but the one that is called gloo.
    Tried with: all.
    Notices: `monitored_barrier` takes other arguments, or refuses no more.
    Lost then: `monitored_barrier` raises torch's error for this backend; `group.monitored_barrier()` works.
    """
    original: Any = distributed_c10d.monitored_barrier

    @functools.wraps(original)
    def monitored_barrier(
        group: Any = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        chosen: Any = distributed_c10d._get_default_group() if group is None else group
        if not is_ours(chosen):
            original(group, timeout, wait_all_ranks)
            return
        limit = timedelta(seconds=timeout) if isinstance(timeout, float | int) else timeout
        chosen.monitored_barrier(limit, wait_all_ranks)

    distributed_c10d.monitored_barrier = monitored_barrier
    dist.monitored_barrier = monitored_barrier


def backend_of(group: Any, device_type: str) -> Any:
    """Returns the group's backend for a device type. A group that is written in Python is its own backend.

    Relies on: `ProcessGroup._get_backend(device)`, which a group in Python need not define.
    Tried with: all.
    Notices: the method is missing.
    Lost then: `cpu:gloo,cuda:perseus` fails with torch's AttributeError.
    """
    base: Any = dist.ProcessGroup
    if type(group) is not base and type(group)._get_backend is base._get_backend:
        return group
    return group._get_backend(torch.device(device_type))


def sequence_number(backend: Any) -> int:
    """Returns the number of collectives that a backend has started.

    Relies on: `Backend._get_sequence_number_for_group()`.
    Tried with: all.
    Notices: the method is missing.
    Lost then: torch's debug checks of a group with several backends fail with its AttributeError.
    """
    return int(backend._get_sequence_number_for_group())


def set_timeout(backend: Any, timeout: timedelta) -> None:
    """Sets the time limit of a backend's collectives.

    Relies on: the method `_set_default_timeout(timeout)` of gloo's and NCCL's backends.
    Tried with: all; torch 2.1 never changes a group's timeout, and has no such method.
    Notices: the method is missing.
    Lost then: changing the timeout of a group with several backends fails with torch's AttributeError.
    """
    backend._set_default_timeout(timeout)


def premultiplied_factor(op: Any) -> Any:
    """Returns the factor of a PREMUL_SUM.

    Relies on: an attribute `factor` of `ReduceOp` if there is one, else the second part of its pickled state.
    Tried with: all.
    Notices: there is neither.
    Lost then: `PREMUL_SUM` fails with torch's AttributeError or TypeError.
    """
    factor = getattr(op, "factor", None)
    return op.__getstate__()[1] if factor is None else factor
