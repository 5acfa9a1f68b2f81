"""Methods of torch's process groups and works that this backend does not support. Each is refused with a text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class _Unsupported:
    """A method that raises NotImplementedError, which names the method and what to use in its place."""

    def __init__(self, instead: str) -> None:
        self._instead = instead

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Callable[..., Any]:
        return self._refuse

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{self._name}: the backend 'perseus' does not support it; {self._instead}")


_NEW_GROUP = "torch.distributed.new_group(ranks) makes a group of some of its ranks"
_ELASTIC = "elastic training (perseus_like.torch.elastic) changes the ranks of a job"
_TIMELINE = "PERSEUS_TIMELINE records all collectives"
_TIMES = "python -m perseus_like.trace reads the times that PERSEUS_TIMELINE recorded"
_NO_HOOK = "no hook can be registered"


class UnsupportedByGroups:
    """Comes before torch's class in the list of bases."""

    split_group = _Unsupported(_NEW_GROUP)
    merge_remote_group = _Unsupported("start a new job, or an elastic one, to add ranks")
    reconfigure = _Unsupported(_ELASTIC)
    get_reconfigure_handle = _Unsupported(_ELASTIC)
    new_window = _Unsupported("send and recv transfer data between two ranks")
    register_pre_hook = _Unsupported(_TIMELINE)
    register_post_hook = _Unsupported(_TIMELINE)
    unregister_pre_hook = _Unsupported(_NO_HOOK)
    unregister_post_hook = _Unsupported(_NO_HOOK)
    register_abort_hook = _Unsupported("call what has to be done beside abort()")
    unregister_abort_hook = _Unsupported(_NO_HOOK)
    _register_on_completion_hook = _Unsupported("Work.get_future() takes callbacks")
    _enable_collectives_timing = _Unsupported("PERSEUS_TIMELINE records all collectives with their times")
    _start_time_estimate = _Unsupported(_TIMES)
    _end_time_estimate = _Unsupported(_TIMES)
    allocate_tensor = _Unsupported("perseus_like.torch.empty() makes tensors in memory that the ranks of a host share")
    eager_connect_single_device = _Unsupported("a group is connected when it is made, or by its first collective")
    perform_nocolor_split = _Unsupported(_NEW_GROUP)
    shrink = _Unsupported(_ELASTIC)


class UnsupportedByWorks:
    """Comes before torch's class in the list of bases."""

    _get_duration = _Unsupported("PERSEUS_TIMELINE records all collectives with their times")
