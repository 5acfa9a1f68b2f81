"""Notices what a program does to gradients between their computation and their use by `step()` or `synchronize()`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch

from ..tensors.shared_memory import warn_once
from .bucket_memory import GradientWatch

_SETTING = "PERSEUS_TOUCHED_GRADIENTS"
_CHOICES = ("warn", "error", "ignore")


class Steps(NamedTuple):
    """Describes what the program has done with the gradients of a reduction."""

    made: int  # how often one optimizer has used them
    edited: set[int]  # those that the program had changed before


class StepWatch:
    """Notices what the program does to the gradients of all ranks before an optimizer uses them."""

    def __init__(self, parameters: list[torch.Tensor], are_in_place: Callable[[Iterable[int]], bool]) -> None:
        self._parameters = parameters
        self._are_in_place = are_in_place
        self._watch = GradientWatch(parameters)
        self._is_waiting = False
        self._edited: set[int] = set()
        self._counts: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()

    def add(self, parameters: Iterable[torch.Tensor]) -> None:
        self._parameters.extend(parameters)

    def note(self) -> None:
        """Notes all gradients, which have been reduced."""
        self._watch.clear_notes()
        self._watch.note(range(len(self._parameters)))
        self._is_waiting = True

    def look(self, optimizer: torch.optim.Optimizer) -> None:
        """Compares the gradients that the optimizer uses now with what was noted.

        It does not compare the gradients of other parameters: the program may clear them when their optimizer has
        stepped, or change them before it steps.
        """
        if not self._is_waiting:
            return
        keys = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        indices = [index for index, parameter in enumerate(self._parameters) if id(parameter) in keys]
        if indices:
            written, removed, _ = self._watch.changes(self._are_in_place, indices)
            self._edited |= written | removed
            self._counts[optimizer] = self._counts.get(optimizer, 0) + 1

    def take(self) -> Steps | None:
        """Returns the steps since `note`; None if it was not called since the last `take`."""
        steps = Steps(max(self._counts.values(), default=0), self._edited) if self._is_waiting else None
        self._edited, self._is_waiting = set(), False
        self._counts.clear()
        return steps


SYNCHRONIZE = (
    "while they were being reduced: {}. Call optimizer.synchronize() before changes such as clipping, and make the "
    "step in 'with optimizer.skip_synchronize():'"
)
CLIP = (
    "which are those of one rank: {}. Clip by optimizer.clip_grad_norm_(max_norm), which knows the gradients of all "
    "ranks"
)
ALONE = "and other ranks have not, so that parameters may differ between ranks: {}. Do the same on all ranks"


def report(owner: str, names: Sequence[str], remedy: str = SYNCHRONIZE, subject: str = "the program") -> str:
    """Warns of gradients that the program has changed. Returns a text if that is to be an error.

    `names`: of the gradients, or none if those are of other ranks, which `subject` names.
    """
    setting = os.environ.get(_SETTING) or "warn"
    if setting not in _CHOICES:
        raise ValueError(f"{_SETTING} is {setting!r}; it must be one of {', '.join(_CHOICES)}")
    if setting == "ignore":
        return ""
    few = ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    whose = few or "see the text there"
    text = f"{owner}: {subject} has changed gradients between backward() and step(), {remedy.format(whose)}"
    if setting == "error":
        return text
    warn_once(f"{text}; {_SETTING}=error makes this an error")
    return ""
