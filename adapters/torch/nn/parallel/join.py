"""Training with different numbers of batches on ranks: which ranks continue, and what the others do meanwhile."""

from __future__ import annotations

import torch

from perseus_like.collectives import Sum, join
from perseus_like.process_sets import GLOBAL, ProcessSet
from perseus_like.tables import Start

from ...tensors import collectives
from ...tensors.cuda import device_to_join_on


class Uneven:
    """The state of one `with model.join():` on this rank."""

    def __init__(self, process_set: ProcessSet, name: str, divide_by_all: bool, throws: bool) -> None:
        """Raises ValueError for a model that not all ranks train, because only all ranks can join."""
        if process_set.process_set_id != GLOBAL:
            raise ValueError(f"join() works for models that all ranks train; this one is trained by {process_set}")
        self._process_set = process_set
        self._name = f"{name}.active"
        self._counts = throws or not divide_by_all
        self._throws = throws
        self._active = self._size

    @property
    def _size(self) -> int:
        return self._process_set.size() or 1

    def factor(self) -> float:
        """Returns the factor that turns an average over all ranks into one over the ranks with batches."""
        return self._size / self._active

    def notify(self) -> None:
        """Counts a batch of this rank. Raises RuntimeError if a rank has none left and that is to end the others."""
        if not self._counts:
            return
        self._active = self._count(1)
        if self._throws and self._active < self._size:
            raise RuntimeError(self._text(self._size - self._active))

    def wait(self) -> int | None:
        """Ends this rank's batches. Returns the last rank with batches, if its values are to be copied."""
        if not self._throws:
            return join(device_to_join_on(-1))
        if (active := self._count(0)) > 0:
            raise RuntimeError(self._text(self._size - active))
        return None

    def _count(self, mine: int) -> int:
        values = torch.tensor([mine])
        return int(
            collectives.allreduce(values, Sum, self._name, process_set=self._process_set, start=Start.call).result()
        )

    @staticmethod
    def _text(ended: int) -> str:
        have = "ranks have" if ended > 1 else "rank has"
        return f"join(throw_on_early_termination=True): {ended} {have} no batches left, so training ends on all ranks"
