"""Tensors of torch's subclasses in the calls of a process group.

torch gives a group of C++ backends the tensors inside of them. It calls the methods of a group in Python with the
tensors as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from ..compat.tensors import awaited, is_fake

_ProcessGroup: Any = dist.ProcessGroup
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_SEQUENCES = (list, tuple)
C = TypeVar("C", bound=type)


def unwrapping(*names: str) -> Callable[[C], C]:
    """Class decorator: these methods get the result of each AsyncCollectiveTensor in its place.

    A call with a FakeTensor communicates nothing: it does what torch does for groups of every backend.
    """

    def decorate(cls: C) -> C:
        for name in names:
            setattr(cls, name, _unwrapping(getattr(cls, name), name))
        return cls

    return decorate


def _unwrapping(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        if _all_plain(arguments) and (not options or _all_plain(options.values())):
            return method(self, *arguments, **options)
        given = [_unwrapped(argument) for argument in arguments]
        named = {key: _unwrapped(option) for key, option in options.items()}
        if _any_fake([*given, *named.values()]):
            return getattr(_ProcessGroup(self.rank(), self.size()), name)(*given, **named)
        return method(self, *given, **named)

    return call


def _all_plain(arguments: Any) -> bool:
    """Returns whether no tensor of a subclass is among the arguments and in their lists."""
    for each in arguments:
        if type(each) in _SEQUENCES:
            if not _all_plain(each):
                return False
        elif type(each) not in _PLAIN and isinstance(each, torch.Tensor):
            return False
    return True


def _unwrapped(given: Any) -> Any:
    if type(given) in _SEQUENCES:
        return type(given)(_unwrapped(each) for each in given)
    return awaited(given) if isinstance(given, torch.Tensor) else given


def _any_fake(arguments: Any) -> bool:
    return any(
        _any_fake(each) if type(each) in _SEQUENCES else isinstance(each, torch.Tensor) and is_fake(each)
        for each in arguments
    )
