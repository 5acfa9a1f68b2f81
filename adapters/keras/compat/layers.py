"""Keras' BatchNormalization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Moments = tuple[Any, Any]


def layer_with_moments(change: Callable[[Any, Any, Any, Any, Any], Moments]) -> type:
    """Returns a class that goes before BatchNormalization among the bases, and changes the moments of a batch.

    `change(layer, inputs, mean, variance, mask)` returns the mean and variance that the layer uses in training. `mask`
    is None if there is none.

    Relies on: BatchNormalization calling `_moments(inputs, mask)` in Keras 3, and `_moments(inputs, reduction_axes,
    keep_dims, mask=None)` in Keras 2 if the layer is not fused; only Keras 2 has `_fused_can_be_used`.
    Tried with: all.
    Notices: the other base has no `_moments`.
    Lost then: making a SyncBatchNormalization raises an AttributeError that says so.
    """

    class LayerWithMoments:
        def __init__(self, *arguments: Any, **options: Any) -> None:
            base: Any = super()
            if not hasattr(base, "_moments"):
                raise AttributeError(
                    "SyncBatchNormalization cannot change the statistics of a batch: BatchNormalization of this Keras "
                    "has no _moments; install Keras 3.15 or 2.15"
                )
            if hasattr(base, "_fused_can_be_used"):
                options["fused"] = False
            base.__init__(*arguments, **options)

        def _moments(self, inputs: Any, *arguments: Any, **more: Any) -> Moments:
            base: Any = super()
            mean, variance = base._moments(inputs, *arguments, **more)
            mask = more.get("mask", arguments[0] if len(arguments) == 1 else None)
            return change(self, inputs, mean, variance, mask)

    return LayerWithMoments
