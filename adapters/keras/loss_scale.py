"""Keras 3's LossScaleOptimizer around a DistributedOptimizer.

LossScaleOptimizer checks whether gradients are finite, and calls its inner optimizer only if they are. If gradients
were reduced in the inner optimizer, a rank with an infinity would leave the others waiting. `compile` puts a
LossScaleOptimizer around any optimizer of a mixed_float16 model, so users cannot be asked for the other order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from .compat import optimizers
from .distribution import Distribution


@functools.cache
def reduce_before_the_finite_check(distribution_of: Callable[[Any], Distribution | None]) -> None:
    """Lets LossScaleOptimizer.apply reduce gradients first, if its inner optimizer is distributed."""

    def around(
        apply: Callable[[Sequence[Any], Sequence[Any] | None], None],
        optimizer: Any,
        gradients: Sequence[Any],
        trainable_variables: Sequence[Any] | None,
    ) -> None:
        distribution = distribution_of(optimizer.inner_optimizer)
        if distribution is None or distribution.suspended:
            apply(gradients, trainable_variables)
            return
        if not optimizer.built:
            optimizer.build(list(trainable_variables or ()))
            optimizer.built = True
        variables = optimizers.variables_of(optimizer) if trainable_variables is None else list(trainable_variables)
        with distribution.suspend():
            distribution.step(
                list(gradients),
                variables,
                lambda reduced: apply(reduced, trainable_variables),
                lambda: optimizers.count_step(optimizer.inner_optimizer),
            )

    optimizers.wrap_loss_scale_apply(around)
