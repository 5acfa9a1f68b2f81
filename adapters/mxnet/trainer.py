"""DistributedTrainer: gluon's Trainer with the gradients of all ranks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from perseus_like.collectives import Average
from perseus_like.compression import NoneCompressor
from perseus_like.gradients import gradient_rules
from perseus_like.process_sets import ProcessSet, global_process_set

from .buckets import GradientBuckets
from .compat.gluon import parameters_of, trainer_that_reduces
from .optimizer import DistributedOptimizer


class DistributedTrainer(trainer_that_reduces(lambda trainer: trainer._reduce_gradients())):  # type: ignore[misc]
    """A Trainer whose `step` uses the mean of all ranks' gradients.

    `step(batch_size)` takes this rank's batch size.

    Args:
        params: the parameters, as for gluon's Trainer. A list of parameters is sorted by name.
        optimizer: the optimizer or its name, as for gluon's Trainer.
        optimizer_params: the optimizer's arguments, as for gluon's Trainer.
        compression: `Compression.none`, `fp16`, `bf16`, or a `Compressor`.
        gradient_predivide_factor: f: gradients are divided by f before the sum and by size/f after it.
        prefix: a part of the names of the collectives, for the timeline and for error texts.
        num_groups: the number of buckets; 0 for buckets of limited size.
        process_set: the ranks that train together. On other ranks the trainer does not communicate.

    Raises:
        ValueError: `prefix` is not a string, or `num_groups` is negative.

    Examples:
        >>> layer = mx.gluon.nn.Dense(1, in_units=2)
        >>> layer.initialize()
        >>> trainer = hvd.DistributedTrainer(layer.collect_params(), "sgd", {"learning_rate": 0.01 * hvd.size()})
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: Mapping[str, Any] | None = None,
        compression: Any = NoneCompressor,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if isinstance(optimizer, DistributedOptimizer):
            warnings.warn(
                "DistributedTrainer was given a DistributedOptimizer, and uses the optimizer that it wraps",
                stacklevel=2,
            )
            optimizer = optimizer.wrapped
        if prefix is not None and not isinstance(prefix, str):
            raise ValueError(f"DistributedTrainer: prefix is {prefix!r}; pass a str")
        rules = gradient_rules(
            *((Average,), Average, gradient_predivide_factor, num_groups, id, process_set, compression)
        )
        if isinstance(params, list | tuple):
            params = sorted(params, key=lambda parameter: str(parameter.name))
        super().__init__(params, optimizer, optimizer_params, kvstore=None)
        self._buckets: GradientBuckets | None = None
        if rules.communicates:
            self._buckets = GradientBuckets(rules, prefix or "", parameters_of(self))

    def _reduce_gradients(self) -> None:
        if self._buckets is not None:
            self._buckets.reduce([parameter for parameter in parameters_of(self) if parameter.grad_req != "null"])
