"""Makes the gradients of a sharded optimizer equal on all ranks before the update, if another object has to do so.

On one host, the update itself adds the gradients of all ranks. On several hosts they are reduced as for
DistributedOptimizer, during the backward pass, and a DistributedDataParallel around the model reduces them everywhere.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch

from perseus_like.collectives import Average, Sum
from perseus_like.gradients import GradientRules
from perseus_like.process_sets import ProcessSet

from ..gradients import GradientBuckets
from ..gradients.ownership import Holder, ReducerPolicy, has_owner, is_reduced_by
from ..parameter_memory import Named
from .ddp_wrapper import wrapper_of_torch

OWNER = "ZeroRedundancyOptimizer"
DDP = "DistributedDataParallel"


class ShardReduction:
    """Knows what reduces the gradients of one sharded optimizer, and has buckets for them on several hosts."""

    def __init__(self, process_set: ProcessSet, averages: bool, passes: int) -> None:
        self._rules = GradientRules(Average if averages else Sum, process_set=process_set, sparse_as_dense=True)
        self._passes = passes
        self._buckets: GradientBuckets | None = None
        self._is_averaged = False  # by a DistributedDataParallel of this library
        self._wrapper: weakref.ref[torch.nn.Module] | None = None  # torch's, which averages
        self._is_final = False  # the norm of this step's gradients is known

    @property
    def is_reduced(self) -> bool:
        """Returns whether the gradients of all ranks are equal when they are updated."""
        return self._is_averaged or self._wrapper is not None or self._buckets is not None

    @property
    def owns(self) -> bool:
        """Returns whether the buckets are the owner of the parameters."""
        return self._buckets is not None

    @property
    def pending(self) -> bool:
        """True while gradients are being reduced or wait for the rest of their bucket."""
        return self._buckets is not None and self._buckets.passes.ready > 0

    def choose(self, holder: Holder, named: Sequence[Named], has_several_hosts: bool) -> None:
        """Finds out what reduces the gradients of `holder`, with the same result on all ranks."""
        if self._buckets is None:
            self._is_averaged = is_reduced_by(DDP, holder, named)
            is_open = has_several_hosts and not self._is_averaged
            wrapper = wrapper_of_torch(named, self._rules.process_set) if is_open else None
            self._wrapper = None if wrapper is None else weakref.ref(wrapper)
        if not has_several_hosts:
            self.close()
        elif not self.is_reduced:
            self._buckets = GradientBuckets(named, self._rules, self._passes, ReducerPolicy(OWNER, counts=self._counts))

    def set_passes_per_step(self, passes: int) -> None:
        self._passes = passes
        if self._buckets is not None:
            self._buckets.set_passes_per_step(passes)

    def finish(self, named: Sequence[Named]) -> None:
        """Reduces the gradients, unless that was done since the last backward pass. `named`: all trained parameters.

        RuntimeError if a DistributedDataParallel has done so until now and is gone.
        """
        self._require_averages(named)
        buckets = self._buckets
        if buckets is not None and not buckets.passes.synchronized:
            buckets.synchronize([(name, each) for name, each in named if not buckets.knows(each)])

    def require_unchanged(self) -> None:
        """Makes a backward pass before the next step an error, because the norm would change."""
        self._is_final = True

    def begin_step(self) -> None:
        """Makes the next `finish` reduce again."""
        self._is_final = False
        if self._buckets is not None:
            self._buckets.passes.synchronized = False

    def abandon(self) -> None:
        """Discards gradients that are being reduced."""
        self._is_final = False
        if self._buckets is not None:
            self._buckets.abandon()

    def close(self) -> None:
        if self._buckets is not None:
            self._buckets.close()
            self._buckets = None

    def _require_averages(self, named: Sequence[Named]) -> None:
        is_gone = self._wrapper is not None and self._wrapper() is None
        if is_gone or (self._is_averaged and not all(has_owner(DDP, each) for _, each in named)):
            raise RuntimeError(
                "ZeroRedundancyOptimizer: it was made for parameters of a DistributedDataParallel that no longer "
                "exists, so that nothing reduces gradients; keep that object and call it in each step, or make the "
                "optimizer anew"
            )

    def _counts(self, index: int) -> bool:
        if self._is_final:
            raise RuntimeError(
                "backward() was called between clip_grad_norm_() and step() of a sharded optimizer; call "
                "clip_grad_norm_() after the last backward pass of a step"
            )
        return True


def require_no_unscaling(was_pending: bool, found: torch.Tensor | None, scale: torch.Tensor | None) -> None:
    """Raises RuntimeError if a GradScaler has divided gradients that were still being reduced.

    `found` and `scale` are what the scaler passes to `step`. Without a scale, it has divided the gradients before.
    """
    if was_pending and found is not None and scale is None:
        raise RuntimeError(
            "ZeroRedundancyOptimizer: GradScaler.unscale_() has divided gradients that were still being reduced over "
            "several hosts; use torch.amp.GradScaler, or omit unscale_()"
        )
