"""The learning rate of a Keras optimizer, and the velocities that contain it."""

from __future__ import annotations

from typing import Any

from . import backends
from .compat.optimizers import velocities_of
from .distribution import innermost


def learning_rate_of(optimizer: Any) -> float:
    """Returns the current learning rate, also of a schedule."""
    rate = optimizer.learning_rate
    if callable(rate):  # a schedule of Keras 2
        rate = rate(optimizer.iterations)
    return rate if isinstance(rate, float) else float(backends.chosen().read([rate])[0])


def set_learning_rate(optimizer: Any, rate: float) -> None:
    """Sets the learning rate. Keras raises TypeError for an optimizer with a schedule."""
    optimizer.learning_rate = rate


def scale_velocity(optimizer: Any, factor: float) -> None:
    """Multiplies the velocities of an optimizer with momentum, because they contain the former learning rate.

    Horovod changes the momentum instead, which is a constant in traced functions.
    """
    inner = innermost(optimizer)
    if factor == 1.0 or not hasattr(inner, "momentum"):
        return
    velocities = velocities_of(inner)
    access = backends.chosen()
    scaled = [(velocity * factor).astype(velocity.dtype) for velocity in access.read(velocities)]
    access.write(velocities, scaled)
