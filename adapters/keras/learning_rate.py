"""The learning rate of any Keras optimizer, and the velocities that contain it."""

from __future__ import annotations

from typing import Any

from . import backends
from .distribution import innermost


def learning_rate_of(optimizer: Any) -> float:
    """Its present value, also of a schedule."""
    rate = optimizer.learning_rate
    if callable(rate):  # a schedule of Keras 2
        rate = rate(optimizer.iterations)
    return rate if isinstance(rate, float) else float(backends.chosen().read([rate])[0])


def set_learning_rate(optimizer: Any, rate: float) -> None:
    """Keras raises TypeError for an optimizer that has a schedule."""
    optimizer.learning_rate = rate


def scale_velocity(optimizer: Any, factor: float) -> None:
    """Multiplies the velocities of an optimizer with momentum: they contain the learning rate they were made with.

    Not the momentum itself, as Horovod does: that is a constant in functions that were traced.
    """
    inner = innermost(optimizer)
    if factor == 1.0 or not hasattr(inner, "momentum"):
        return
    velocities = _velocities(inner)
    access = backends.chosen()
    scaled = [(velocity * factor).astype(velocity.dtype) for velocity in access.read(velocities)]
    access.write(velocities, scaled)


def _velocities(optimizer: Any) -> list[Any]:
    for name in ("momentums", "_momentums"):
        found = getattr(optimizer, name, None)
        if found is not None:
            return [each for each in found if each is not None]
    if hasattr(optimizer, "get_slot_names"):  # Keras 2's older optimizers
        return [each for each in optimizer.weights if each.name.rpartition("/")[2].startswith("momentum")]
    return []
