"""Works of groups in C++: a work in Python takes over everything but the wait for a result."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

from torch import Tensor

from perseus_like.host_memory.registration import LARGE_ELEMENTS
from perseus_like.session import session

from ...native_group import native
from . import PerseusWork, SubmittedRequest

C = TypeVar("C", bound=type)
_OWN = frozenset({"wait"})  # the methods of NativeWork that are C++


def work_of(group: Any, process_set: int, limit_ns: int, address: int, tensor: Tensor, number: int) -> PerseusWork:
    """Returns the work in Python of an all_reduce that C++ has started. C++ calls this.

    `group`: None if it does not exist any more; `address`: the core's handle, see csrc/capi/perseus.h.
    """
    result = [tensor]
    handle = session.core.handle_at(address, result)
    name = f"#{number}"
    request = SubmittedRequest("" if group is None else group.getGroupName(), process_set, name)
    return PerseusWork(f"all_reduce {name}", handle, result, limit_ns / 1e9, margin=0.0, request=request)


def executed_natively(cls: C) -> C:
    """Class decorator: if the group in C++ is there, it executes `allreduce`, or calls the method in Python."""
    if native is not None:
        cls._allreduce_in_python = cls.allreduce  # type: ignore[attr-defined]
        cls.allreduce = native.allreduce  # type: ignore[attr-defined]
    return cls


def _in_python(name: str) -> Any:
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        return getattr(self.in_python(), name)(*arguments, **options)

    return functools.wraps(getattr(PerseusWork, name))(call)


def _prepare() -> None:
    native.use(session.core.c_api(), LARGE_ELEMENTS)
    for name in dir(PerseusWork):
        if name.startswith("__") or name in _OWN:
            continue
        method = getattr(PerseusWork, name)
        setattr(native.NativeWork, name, _in_python(name) if callable(method) else _attribute(name))


def _attribute(name: str) -> property:
    return property(lambda self: getattr(self.in_python(), name))


if native is not None:
    _prepare()
