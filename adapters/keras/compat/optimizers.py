"""Optimizers of Keras 3, of Keras 2, and Keras 2's older ones (`keras.optimizers.legacy`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras

KERAS_3, KERAS_2, LEGACY = "Keras 3", "Keras 2", "legacy"


def generation_of(optimizer_class: type) -> str | None:
    """Returns KERAS_3, KERAS_2 or LEGACY for a class of optimizers; None for another class.

    Relies on: optimizers of Keras 3 making all their steps through `apply`, those of Keras 2 having
    `aggregate_gradients`, and legacy ones `_aggregate_gradients`, `_compute_gradients` and `_create_all_weights`.
    Tried with: all.
    Notices: a class has none of these sets of methods; then it returns None.
    Lost then: DistributedOptimizer raises a ValueError that names the class.
    """
    if hasattr(optimizer_class, "apply"):
        return KERAS_3
    if hasattr(optimizer_class, "aggregate_gradients"):
        return KERAS_2
    legacy = ("_aggregate_gradients", "_compute_gradients", "_create_all_weights")
    return LEGACY if all(hasattr(optimizer_class, name) for name in legacy) else None


def variables_of(optimizer: Any) -> list[Any]:
    """Returns the variables that an optimizer of Keras 3 was built with.

    Relies on: `Optimizer._trainable_variables`, a list.
    Tried with: 3.15; Keras 2 does not need it.
    Notices: the attribute is missing.
    Lost then: `apply(gradients)` without variables fails with Python's AttributeError.
    """
    return list(optimizer._trainable_variables)


def count_step(optimizer: Any) -> None:
    """Adds one to the number of steps of an optimizer of Keras 3.

    Relies on: `Optimizer._iterations`, a variable; without it, `Optimizer.iterations` is the variable and no tensor.
    Tried with: 3.0 and 3.15; Keras 2 does not need it.
    Notices: the attributes are missing.
    Lost then: `backward_passes_per_step` fails with Python's AttributeError.
    """
    (optimizer._iterations if hasattr(optimizer, "_iterations") else optimizer.iterations).assign_add(1)


def velocities_of(optimizer: Any) -> list[Any]:
    """Returns the variables that contain past gradients times the learning rate, of an optimizer with momentum.

    Relies on: the lists `momentums` or `_momentums`; in legacy optimizers, names of weights that begin with "momentum".
    Tried with: all.
    Notices: an optimizer has none of them; then it returns an empty list.
    Lost then: `momentum_correction` of the learning rate callbacks has no effect.
    """
    for name in ("momentums", "_momentums"):
        found = getattr(optimizer, name, None)
        if found is not None:
            return [each for each in found if each is not None]
    if hasattr(optimizer, "get_slot_names"):  # a legacy optimizer
        return [each for each in optimizer.weights if each.name.rpartition("/")[2].startswith("momentum")]
    return []


@functools.cache
def wrap_loss_scale_apply(around: Callable[..., None]) -> None:
    """Lets `around(apply, optimizer, gradients, variables)` run in place of LossScaleOptimizer.apply.

    `apply(gradients, variables)` is Keras' method. `variables` may be None.

    Relies on: `LossScaleOptimizer.apply(gradients, trainable_variables)` being the only way to its steps, and calling
    `inner_optimizer.apply` only if all gradients are finite.
    Tried with: 3.15; Keras 2 does not need it.
    Notices: the class or the method is missing.
    Lost then: the first DistributedOptimizer fails with Python's AttributeError.
    """
    optimizer_class = keras.optimizers.LossScaleOptimizer
    original = optimizer_class.apply

    @functools.wraps(original)
    def apply(self: Any, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        around(functools.partial(original, self), self, grads, trainable_variables)

    optimizer_class.apply = apply
