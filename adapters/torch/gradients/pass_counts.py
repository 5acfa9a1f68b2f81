"""The number of backward passes that an optimizer makes before gradients are reduced, under Horovod's names."""

from __future__ import annotations

from typing import Protocol

from perseus_like.gradients import checked_passes


class Counter(Protocol):
    """Counts the passes, and reduces after the last one."""

    def set_passes_per_step(self, passes: int) -> None: ...


class HorovodPassNames:
    """Methods of the optimizers."""

    _passes = 1

    @property
    def backward_passes_per_step(self) -> int:
        """The number of backward passes that are summed locally before gradients are reduced."""
        return self._passes

    @backward_passes_per_step.setter
    def backward_passes_per_step(self, passes: int) -> None:
        self.set_backward_passes_per_step(passes)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets the number of backward passes that are summed locally.

        It counts from the next pass on, or from the next step on if this step's passes are done.
        """
        self._passes = checked_passes(passes)
        counter = self._pass_counter()
        if counter is not None:
            counter.set_passes_per_step(passes)

    def _pass_counter(self) -> Counter | None:
        """Returns None if gradients are not reduced. Optimizers that reduce them override it."""
        return None
