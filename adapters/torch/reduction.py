"""What is done to gradients, and for whom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perseus_like.collectives import Op
from perseus_like.gradients import BUCKET_BYTES
from perseus_like.process_sets import ProcessSet


@dataclass(frozen=True)
class Reduction:
    """What happens to gradients on their way."""

    op: Op
    compression: Any
    prescale: float
    postscale: float
    process_set: ProcessSet
    sparse_as_dense: bool


@dataclass(frozen=True)
class Owner:
    """What differs between those for whom gradients are reduced.

    `counts`: asked when a gradient comes, whether it is to be reduced, or stays this rank's own for now.
    `fills_in`: a gradient that this rank has not computed is zero; else it stays None, until `show`.
    `learns_passes`: a gradient may come several times in a pass, always as often as in the first one.
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
