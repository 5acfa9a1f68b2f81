"""Batch normalization over the batches of all ranks: the result is that of one process on the whole batch."""

from __future__ import annotations

from typing import Any

import keras

from perseus_like.collectives import Sum
from perseus_like.launch.elastic.messages import is_elastic
from perseus_like.process_sets import ProcessSet, global_process_set

from . import backends


class SyncBatchNormalizationImpl:
    """Keras' BatchNormalization with the mean and variance of all ranks' batches while training.

    Batches may be of different sizes, also empty. Costs one allreduce forward and one backward, 24 bytes for each
    channel. In inference it is local. A saved model is loaded where this module has been imported; the process set is
    not saved.

    Args:
        fused: there for Horovod's sake, and only False.
        process_set: the ranks that share statistics. On other ranks they are each rank's own.
        kwargs: those of BatchNormalization.
    """

    name: str

    def __init__(self, fused: bool = False, process_set: ProcessSet = global_process_set, **kwargs: Any) -> None:
        if fused is not False:
            raise ValueError("SyncBatchNormalization is not fused: statistics of all ranks are needed in between")
        if hasattr(self, "_fused_can_be_used"):  # of Keras 2
            kwargs["fused"] = False
        super().__init__(**kwargs)
        self.process_set = process_set

    def _moments(self, inputs: Any, *arguments: Any, **more: Any) -> tuple[Any, Any]:
        """Of Keras 3: (inputs, mask); of Keras 2: (inputs, reduction_axes, keep_dims, mask=None)."""
        layer: Any = super()
        mean, variance = layer._moments(inputs, *arguments, **more)
        ranks = self.process_set
        # A function is traced once, and an elastic job may get more ranks later.
        alone = ranks.size() == 1 and not is_elastic()
        if not ranks.included() or alone or _is_abstract(inputs):
            return mean, variance
        backend = backends.chosen()
        math = backend.math
        mask = more.get("mask", arguments[0] if len(arguments) == 1 else None)
        count = math.size(inputs) / math.size(mean) if mask is None else math.sum(math.cast(mask, "float64"))
        return _of_all_ranks(backend, mean, variance, count, self.name, ranks)


def _is_abstract(inputs: Any) -> bool:
    """While Keras finds out about shapes with torch, tensors are on a device without memory."""
    return getattr(getattr(inputs, "device", None), "type", None) == "meta"


def _of_all_ranks(backend: Any, mean: Any, variance: Any, count: Any, name: str, ranks: ProcessSet) -> tuple[Any, Any]:
    """Mean and biased variance over the ranks' values, `count` of them here.

    Sums travel in float64, where a mean far from zero does not drown the variance.
    """
    math = backend.math
    here = math.cast(count, "float64")
    zero = math.zeros_like(math.cast(mean, "float64"))

    def weighted(moment: Any) -> Any:
        return math.where(here > 0, moment * here, zero)  # moments of nothing are no numbers

    wide_mean = math.cast(mean, "float64")
    squares = math.cast(variance, "float64") + wide_mean * wide_mean
    sums = math.stack([weighted(wide_mean), weighted(squares), zero + here])
    totals = backend.framework.allreduce(sums, op=Sum, name=f"sync_batch_norm.{name}", process_set=ranks)
    everywhere = math.maximum(totals[2], 1.0)
    global_mean = totals[0] / everywhere
    global_variance = math.maximum(totals[1] / everywhere - global_mean * global_mean, 0.0)
    return math.cast(global_mean, mean.dtype), math.cast(global_variance, variance.dtype)


@keras.saving.register_keras_serializable(package="perseus_like")
class SyncBatchNormalization(SyncBatchNormalizationImpl, keras.layers.BatchNormalization):  # type: ignore[misc]
    __doc__ = SyncBatchNormalizationImpl.__doc__
