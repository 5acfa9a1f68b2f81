"""Notices what a program does to gradients between their computation and their use by `step()` or `synchronize()`."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Mapping, Sequence
from typing import NamedTuple

import torch

from perseus_like.agreement import OwnChanges

from .shared_memory import warn_once

_SETTING = "PERSEUS_TOUCHED_GRADIENTS"
_CHOICES = ("warn", "error", "ignore")


class Changes(NamedTuple):
    """The gradients, by index, that the program has written to or replaced, and those that it has set to None."""

    written: set[int]
    removed: set[int]
    intact: set[int]  # these are as they were noted


class GradientWatch:
    """The gradients of one owner. Reads are not noticed, nor writes through `.data`, which torch does not count."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        """Takes the owner's list of parameters, which may grow."""
        self._parameters = parameters
        self._noted: dict[int, tuple[torch.Tensor, int]] = {}  # by index: a gradient and its version

    def note(self, indices: Sequence[int]) -> None:
        """Notes gradients that have been computed, or were moved to their bucket. It runs for each gradient."""
        noted, parameters = self._noted, self._parameters
        for index in indices:
            gradient = parameters[index].grad
            if gradient is not None:
                noted[index] = (gradient, gradient._version)

    def note_again(self) -> None:
        """Notes the gradients that were noted as they are now."""
        self.note([*self._noted])

    def is_noted(self, index: int) -> bool:
        return index in self._noted

    def changes(self, is_in_place: Callable[[int], bool]) -> Changes:
        """Compares all gradients with what was noted. `is_in_place(index)`: whether the noted one has its memory."""
        written, removed, intact, parameters = set(), set(), set(), self._parameters
        for index, (gradient, version) in self._noted.items():
            now = parameters[index].grad
            if now is gradient and now._version == version and is_in_place(index):
                intact.add(index)
            else:
                (removed if now is None else written).add(index)
        return Changes(written, removed, intact)

    def clear(self) -> None:
        self._noted.clear()


def own_changes(
    parameters: Sequence[tuple[str, torch.Tensor]], known: Mapping[int, int], removed: Container[int], error: str
) -> OwnChanges:
    """Returns what the program has done to an owner's parameters. `known`: the index of each, by its id()."""
    frozen, new, gone = [], [], []
    for position, (_, parameter) in enumerate(parameters):
        index = known.get(id(parameter))
        if index is None:
            if parameter.requires_grad:
                new.append(position)
            continue
        if not parameter.requires_grad:
            frozen.append(position)
        if index in removed:
            gone.append(position)
    return OwnChanges(frozenset(frozen), frozenset(gone), frozenset(new), error)


SYNCHRONIZE = (
    "while they were being reduced: {}. Call optimizer.synchronize() before changes such as clipping, and make the "
    "step in 'with optimizer.skip_synchronize():'"
)
CLIP = (
    "which are those of one rank: {}. Clip by optimizer.clip_grad_norm_(max_norm), which knows the gradients of all "
    "ranks"
)


def report(owner: str, names: Sequence[str], remedy: str = SYNCHRONIZE) -> str:
    """Warns of gradients that the program has changed. Returns a text if that is to be an error."""
    setting = os.environ.get(_SETTING) or "warn"
    if setting not in _CHOICES:
        raise ValueError(f"{_SETTING} is {setting!r}; it must be one of {', '.join(_CHOICES)}")
    if setting == "ignore":
        return ""
    few = ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    text = f"{owner}: the program has changed gradients between backward() and step(), {remedy.format(few)}"
    if setting == "error":
        return text
    warn_once(f"{text}; {_SETTING}=error makes this an error")
    return ""
