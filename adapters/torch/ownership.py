"""Whose parameters are whose: what is reduced in place for one owner must not be read for another at the same time."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch


class Holder(Protocol):
    """Who reduces the gradients of parameters."""

    @property
    def owner_name(self) -> str: ...
    @property
    def is_open(self) -> bool: ...
    def knows(self, parameter: torch.Tensor) -> bool: ...


_all: weakref.WeakSet[Holder] = weakref.WeakSet()


def register(holder: Holder) -> None:
    _all.add(holder)


def require_sole_owner(holder: Holder, named: Sequence[tuple[str, torch.Tensor]]) -> None:
    """ValueError where one of the holder's parameters is another one's, too."""
    if next(_shared(holder, named), None) is None:
        return
    gc.collect()  # one that was replaced by this one may live in a cycle still
    for name, other in _shared(holder, named):
        mine = holder.owner_name
        owners = f"two {mine}s" if mine == other else f"a {mine} and a {other}"
        raise ValueError(
            f"the parameter {name!r} is in {owners}; wrap the model or one optimizer of each parameter, and step "
            f"other optimizers plainly when that one has synchronized"
        )


def _shared(holder: Holder, named: Sequence[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, str]]:
    others = [other for other in _all if other is not holder and other.is_open]
    return ((name, other.owner_name) for name, each in named for other in others if other.knows(each))
