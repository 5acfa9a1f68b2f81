"""DistributedTrainer: gluon's Trainer with the gradients of all ranks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from perseus_like.collectives import Average
from perseus_like.collectives.compression import NoneCompressor
from perseus_like.gradients import gradient_rules
from perseus_like.process_sets import ProcessSet, global_process_set

from .buckets import GradientBuckets
from .compat.gluon import parameters_of, trainer_that_reduces
from .compat.parameters import mark_new_gradient
from .optimizer import DistributedOptimizer

_Trainer = trainer_that_reduces(
    lambda trainer: trainer._reduce_gradients(),
    lambda trainer, ignores: trainer._use_missing_gradients(ignores),
)


class DistributedTrainer(_Trainer):  # type: ignore[misc,valid-type]
    """A Trainer whose `step` uses the mean of all ranks' gradients.

    `step(batch_size)` takes this rank's batch size. With `ignore_stale_grad=True`, a gradient that no backward pass has
    computed on some ranks counts as zeros there, and a parameter without a gradient on all ranks is not updated.
    Without it, a gradient that is missing on some ranks is an error on all ranks.

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
        self._missing: dict[Any, list[int]] = {}  # parameters whose gradients some ranks lack in this step
        self._buckets: GradientBuckets | None = None
        if rules.communicates:
            self._buckets = GradientBuckets(rules, prefix or "", parameters_of(self))

    def _reduce_gradients(self) -> None:
        if self._buckets is not None:
            trained = [parameter for parameter in parameters_of(self) if parameter.grad_req != "null"]
            self._missing = self._buckets.reduce(trained)

    def _use_missing_gradients(self, ignores: bool) -> None:
        """Makes all ranks update the same parameters. Raises UserWarning, as gluon's Trainer, unless `ignores`."""
        missing, self._missing = self._missing, {}
        if missing and not ignores:
            parameter, ranks = next(iter(missing.items()))
            more = f", and of {len(missing) - 1} more parameters" if len(missing) > 1 else ""
            raise UserWarning(
                f"DistributedTrainer: no backward pass since the last step has computed the gradient of "
                f"{parameter.name!r}{more} on ranks {ranks}, but on the other ranks; compute the same gradients on all "
                "ranks, or call step(…, ignore_stale_grad=True), which counts missing gradients as zeros"
            )
        for parameter in missing:
            mark_new_gradient(parameter)
