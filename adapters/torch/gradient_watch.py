"""Notices what a program does to gradients between their computation and their use by `step()` or `synchronize()`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import torch

from .shared_memory import warn_once

_SETTING = "PERSEUS_TOUCHED_GRADIENTS"
_CHOICES = ("warn", "error", "ignore")


class Computed(NamedTuple):
    """A gradient as it was when it had been computed."""

    gradient: torch.Tensor
    version: int
    address: int


class Changes(NamedTuple):
    """The gradients, by index, that the program has written to or replaced, and those that it has set to None."""

    written: list[int]
    removed: list[int]


class GradientWatch:
    """The gradients of one owner. Reads are not noticed, nor writes through `.data`, which torch does not count."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        """Takes the owner's list of parameters, which may grow."""
        self._parameters = parameters
        self.computed: dict[int, Computed] = {}  # by index; since the last `clear`

    def note(self, index: int, gradient: torch.Tensor) -> None:
        """Notes a gradient that has been computed, or was moved to its bucket. It runs for each gradient."""
        if gradient.layout is torch.strided and type(gradient) is torch.Tensor:
            self.computed[index] = Computed(gradient, gradient._version, gradient.data_ptr())

    def is_unchanged(self, index: int) -> bool:
        """Returns whether the gradient is as it was noted."""
        noted, gradient = self.computed.get(index), self._parameters[index].grad
        return noted is not None and _is_as_noted(gradient, noted)

    def changes(self) -> Changes:
        changed = [index for index, noted in self.computed.items() if not _is_as_noted(self._parameters[index].grad, noted)]
        removed = [index for index in changed if self._parameters[index].grad is None]
        return Changes([index for index in changed if index not in removed], removed)

    def clear(self) -> None:
        self.computed.clear()


def _is_as_noted(gradient: torch.Tensor | None, noted: Computed) -> bool:
    return gradient is noted.gradient and gradient._version == noted.version and gradient.data_ptr() == noted.address


def report(owner: str, names: Sequence[str]) -> str:
    """Warns of gradients that the program has changed. Returns a text if that is to be an error."""
    setting = os.environ.get(_SETTING) or "warn"
    if setting not in _CHOICES:
        raise ValueError(f"{_SETTING} is {setting!r}; it must be one of {', '.join(_CHOICES)}")
    if setting == "ignore":
        return ""
    few = ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    text = (
        f"{owner}: the program has changed gradients between backward() and step(), while they were being reduced: "
        f"{few}. Call optimizer.synchronize() before changes such as clipping, and make the step in "
        "'with optimizer.skip_synchronize():'"
    )
    if setting == "error":
        return text
    warn_once(f"{text}; {_SETTING}=error makes this an error")
    return ""
