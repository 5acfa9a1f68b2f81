"""Keras 3's LossScaleOptimizer around a DistributedOptimizer.

It looks whether gradients are finite, and calls the optimizer within only if so. Were gradients reduced there, a rank
with an infinity would leave the others waiting. `compile` puts it around any optimizer of a mixed_float16 model, so
nobody can be asked to wrap the other way round.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras

from .distribution import Distribution


@functools.cache
def reduce_before_the_finite_check(distribution_of: Callable[[Any], Distribution | None]) -> None:
    """From now on LossScaleOptimizer.apply reduces first, where the optimizer within is distributed."""
    original = keras.optimizers.LossScaleOptimizer.apply

    @functools.wraps(original)
    def apply(self: Any, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        distribution = distribution_of(self.inner_optimizer)
        if distribution is None or distribution.suspended:
            original(self, grads, trainable_variables)
            return
        if not self.built:
            self.build(list(trainable_variables or ()))
            self.built = True
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        with distribution.suspend():
            distribution.step(
                list(grads),
                variables,
                lambda reduced: original(self, reduced, trainable_variables),
                lambda: self.inner_optimizer._iterations.assign_add(1),
            )

    keras.optimizers.LossScaleOptimizer.apply = apply
