"""Checks that each parameter belongs to at most one gradient reducer, because gradients are reduced in place."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from perseus_like.gradients.buckets import BUCKET_BYTES


@dataclass(frozen=True)
class ReducerPolicy:
    """Describes the object that owns the gradients: an optimizer or a DistributedDataParallel.

    `counts(index)`: returns True if the gradient that was just computed is reduced, False if it stays local for now.
    `fills_in`: a gradient that this rank has not computed becomes zero. If false, it stays None until `show`.
    `learns_passes`: a gradient may be computed several times in a pass, always as often as in the first pass.
    """

    name: str = "DistributedOptimizer"
    too_many: str = (
        "gradients were computed more than backward_passes_per_step times before step() or synchronize(); increase "
        "backward_passes_per_step to accumulate gradients locally, or freeze these parameters while the loss of "
        "another model passes through them"
    )
    counts: Callable[[int], bool] | None = None
    fills_in: bool = True
    learns_passes: bool = False
    bucket_bytes: int = BUCKET_BYTES


class Holder(Protocol):
    """A gradient reducer, which owns parameters."""

    @property
    def description(self) -> str: ...
    @property
    def reduces_after(self) -> str:
        """Returns the name of the kind of owner that reduces the gradients before this one uses them, or ""."""

    @property
    def has_hooks(self) -> bool: ...
    def knows(self, parameter: torch.Tensor) -> bool: ...


_all: weakref.WeakSet[Holder] = weakref.WeakSet()


def describe(name: str, parameter: torch.Tensor) -> str:
    """Returns the text on which the ranks agree for each parameter of an owner."""
    return f"{name!r} {str(parameter.dtype).removeprefix('torch.')}{list(parameter.shape)}"


def register(holder: Holder) -> None:
    _all.add(holder)


def require_sole_owner(holder: Holder, named: Sequence[tuple[str, torch.Tensor]]) -> None:
    """Raises ValueError if one of the holder's parameters belongs to another owner, too."""
    if next(_shared(holder, named), None) is None:
        return
    gc.collect()  # an owner that this one replaces may still exist in a cycle
    for name, other in _shared(holder, named):
        mine = holder.description
        owners = f"two {mine}s" if mine == other else f"a {mine} and a {other}"
        raise ValueError(
            f"the parameter {name!r} is in {owners}; wrap the model or one optimizer of each parameter, and step "
            f"other optimizers plainly when that one has synchronized"
        )


def is_reduced_by(description: str, holder: Holder, named: Sequence[tuple[str, torch.Tensor]]) -> bool:
    """Returns whether an owner of this name reduces the gradients of all these parameters.

    Raises ValueError if it does so for some of them only, or if another owner does.
    """
    if next(_shared(holder, named), None) is None:
        return False
    gc.collect()  # an owner that nobody uses any more may still exist in a cycle
    theirs = {name for name, other in _shared(holder, named) if other == description}
    require_sole_owner(holder, [(name, each) for name, each in named if name not in theirs])
    without = [name for name, _ in named if name not in theirs]
    if theirs and without:
        raise ValueError(
            f"the gradient of {without[0]!r} is reduced by the {holder.description} alone, and that of {min(theirs)!r} "
            f"by a {description}, too; make one optimizer for each"
        )
    return bool(theirs)


def has_owner(description: str, parameter: torch.Tensor) -> bool:
    """Returns whether an owner of this name reduces the gradient of the parameter."""
    return any(other.description == description and other.has_hooks and other.knows(parameter) for other in _all)


def _shared(holder: Holder, named: Sequence[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, str]]:
    others = [
        other for other in _all if other is not holder and other.has_hooks and other.reduces_after != holder.description
    ]
    return ((name, other.description) for name, each in named for other in others if other.knows(each))
