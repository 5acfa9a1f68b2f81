"""Methods of torch's process groups and works that this backend does not support. Each is refused with a text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

C = TypeVar("C", bound=type)

# The replacement for each method.
OF_GROUPS = {
    "split_group": "torch.distributed.new_group(ranks) makes a group of some of its ranks",
    "merge_remote_group": "start a new job, or an elastic one, to add ranks",
    "reconfigure": "elastic training (perseus_like.torch.elastic) changes the ranks of a job",
    "get_reconfigure_handle": "elastic training (perseus_like.torch.elastic) changes the ranks of a job",
    "new_window": "send and recv transfer data between two ranks",
    "register_pre_hook": "PERSEUS_TIMELINE records all collectives",
    "register_post_hook": "PERSEUS_TIMELINE records all collectives",
    "unregister_pre_hook": "no hook can be registered",
    "unregister_post_hook": "no hook can be registered",
    "register_abort_hook": "call what has to be done beside abort()",
    "unregister_abort_hook": "no hook can be registered",
    "_register_on_completion_hook": "Work.get_future() takes callbacks",
    "_enable_collectives_timing": "PERSEUS_TIMELINE records all collectives with their times",
    "_start_time_estimate": "python -m perseus_like.trace reads the times that PERSEUS_TIMELINE recorded",
    "_end_time_estimate": "python -m perseus_like.trace reads the times that PERSEUS_TIMELINE recorded",
    "allocate_tensor": "perseus_like.torch.empty() makes tensors in memory that the ranks of a host share",
    "eager_connect_single_device": "a group is connected when it is made, or by its first collective",
    "perform_nocolor_split": "torch.distributed.new_group(ranks) makes a group of some of its ranks",
    "shrink": "elastic training (perseus_like.torch.elastic) changes the ranks of a job",
}
OF_WORKS = {"_get_duration": "PERSEUS_TIMELINE records all collectives with their times"}


def refusing(methods: dict[str, str]) -> Callable[[C], C]:
    """Class decorator: the methods raise NotImplementedError, which names the method and what to use in its place."""

    def decorate(cls: C) -> C:
        for name, instead in methods.items():
            setattr(cls, name, _refuse(name, instead))
        return cls

    return decorate


def _refuse(name: str, instead: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{name}: the backend 'perseus' does not support it; {instead}")

    refuse.__name__ = name
    return refuse
