"""The barrier of a sharded optimizer, which also tells all ranks who is there and what has happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from perseus_like.collectives import Sum
from perseus_like.errors import DisagreementError
from perseus_like.process_sets import ProcessSet
from perseus_like.tables import Start

from ..tensors import collectives


class OwnStep(NamedTuple):
    """The message of one rank to all ranks."""

    found_infinity: bool
    loss_scale: float
    partial_steps: int  # its steps without ranks that had joined, since all ranks met
    has_loaded: bool  # a state, since then
    has_written: bool  # its program has written parameters since the last step
    has_failed: bool  # it is to raise an error
    trains_others: bool  # it trains other parameters than before
    has_touched: bool  # its program has written to gradients since the last step


@dataclass(frozen=True)
class StepBarrier:
    """The answers of all ranks of a process set."""

    present: tuple[int, ...]  # the places in the set of the ranks that have not joined
    found_infinity: bool  # on one of them
    partial_steps: int  # the most on one of them
    has_loaded: bool  # on one of them
    writers: tuple[int, ...]  # the places of the ranks whose program has written parameters since the last step
    failed: tuple[int, ...]  # the places of the ranks that have an error
    changed: tuple[int, ...]  # the places of the ranks that train other parameters than before
    touched: tuple[int, ...]  # the places of the ranks whose program has written to gradients
    same_scales: bool  # their loss scales are equal

    @staticmethod
    def of(process_set: ProcessSet, name: str, number: int, mine: OwnStep) -> StepBarrier:
        """Blocks until all ranks are here. `number`: the optimizer's; DisagreementError if a rank has another one."""
        size, place = process_set.size() or 1, process_set.rank() or 0
        values = torch.zeros(6 + 2 * size, dtype=torch.float64)
        scale = mine.loss_scale
        values[:4] = values.new_tensor([mine.found_infinity, mine.has_loaded, scale, scale * scale])
        values[4:6] = values.new_tensor([number + 1, (number + 1) ** 2])
        values[6 + place] = 1.0 + mine.partial_steps
        flags = (mine.has_written, mine.has_failed, mine.trains_others, mine.has_touched)
        values[6 + size + place] = float(sum(flag << at for at, flag in enumerate(flags)))
        reduced = (
            collectives.reduce_in_place(values, Sum, name, process_set=process_set, start=Start.call).result().tolist()
        )
        infinities, loads, scales, squares, numbers, squares_of_numbers, *rest = reduced
        by_place = rest[:size]
        writers, failed, changed, touched = (
            tuple(at for at, bits in enumerate(rest[size:]) if int(bits) >> bit & 1) for bit in range(4)
        )
        present = tuple(at for at, each in enumerate(by_place) if each)
        if len(present) * squares_of_numbers != numbers * numbers:
            raise DisagreementError("the ranks step different sharded optimizers")
        same_scales = abs(len(present) * squares - scales * scales) <= 1e-9 * scales * scales or bool(infinities)
        partial = int(max(by_place)) - 1
        return StepBarrier(
            present, bool(infinities), partial, bool(loads), writers, failed, changed, touched, same_scales
        )

    def check(self, error: str, process_set: ProcessSet) -> None:
        """Raises RuntimeError if a rank has an error, with the text of this rank's, or trains others than all ranks.

        DisagreementError if the ranks have different loss scales.
        """
        if not self.same_scales:
            raise DisagreementError(
                "ZeroRedundancyOptimizer: the ranks have different loss scales; make GradScaler with the same options "
                "on all ranks, and call its functions equally often"
            )
        all_ranks = process_set.ranks or [0]
        if self.failed:
            ranks = [all_ranks[place] for place in self.failed]
            raise RuntimeError(
                error
                or f"ZeroRedundancyOptimizer: ranks {ranks} have changed gradients, or the memory of parameters; see "
                "the text there"
            )
        if self.changed and self.changed != self.present:
            ranks = [all_ranks[place] for place in self.changed]
            raise RuntimeError(
                f"ZeroRedundancyOptimizer: ranks {ranks} have frozen, unfrozen or added parameters, and others have "
                "not; do so on all ranks"
            )


def may_overflow(process_set: ProcessSet, name: str, number: int, mine: float) -> bool:
    """Blocks until all ranks are here. Returns whether the sum over the ranks may be beyond the range of a dtype.

    `mine`: this rank's largest gradient, as a share of the largest number of its dtype. DisagreementError if a rank has
    another `number`, that of its optimizer.
    """
    values = torch.tensor([mine, 1, number, number * number], dtype=torch.float64)
    reduced = (
        collectives.reduce_in_place(values, Sum, name, process_set=process_set, start=Start.call).result().tolist()
    )
    shares, present, numbers, squares = reduced  # a rank that has joined adds zeros
    if present * squares != numbers * numbers:
        raise DisagreementError("the ranks step different sharded optimizers")
    return bool(shares > 1.0)
