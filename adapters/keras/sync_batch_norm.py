"""SyncBatchNormalization: batch normalization over the batches of all ranks, as in one process with the whole batch."""

from __future__ import annotations

from threading import current_thread, main_thread
from typing import Any

import keras

from perseus_like.collectives import Sum
from perseus_like.process_sets import ProcessSet, global_process_set
from perseus_like.protocol.messages import is_elastic

from . import backends
from .compat.layers import layer_with_moments


def _moments_of_all_ranks(layer: Any, inputs: Any, mean: Any, variance: Any, mask: Any) -> tuple[Any, Any]:
    ranks = layer.process_set
    # A function is traced once, and an elastic job may get more ranks later.
    is_local = ranks.size() == 1 and not is_elastic()
    # Keras on torch infers shapes with tensors on a device without memory.
    is_abstract = getattr(getattr(inputs, "device", None), "type", None) == "meta"
    if not ranks.included() or is_local or is_abstract:
        return mean, variance
    backend = backends.chosen()
    math = backend.math
    count = math.cast(math.size(inputs) / math.size(mean), "float64")
    if mask is not None:
        count *= backend.mean(math.cast(mask, "float64"))
    # Ranks may count layers apart. In the main thread layers follow one another, so a name need not tell them apart.
    name = "sync_batch_norm" if current_thread() is main_thread() else f"sync_batch_norm.{layer.name}"
    return _of_all_ranks(backend, mean, variance, count, name, ranks)


class SyncBatchNormalizationImpl(layer_with_moments(_moments_of_all_ranks)):  # type: ignore[misc]
    """Keras' BatchNormalization with the mean and variance of all ranks' batches while training.

    Batches may differ in size, and may be empty. A training step costs one allreduce forward and one backward, of 24
    bytes for each channel. In inference the layer is local. A program must import this module before it loads a saved
    model. The process set is not saved.

    Args:
        fused: must be False; an argument of Horovod.
        process_set: the ranks that share statistics. Other ranks use their own.
        kwargs: the arguments of BatchNormalization.

    Raises:
        ValueError: `fused` is true.

    Examples:
        >>> layer = hvd.SyncBatchNormalization()
        >>> layer(np.ones((4, 3), np.float32)).shape[-1]
        3
    """

    name: str

    def __init__(self, fused: bool = False, process_set: ProcessSet = global_process_set, **kwargs: Any) -> None:
        if fused is not False:
            raise ValueError("SyncBatchNormalization needs the statistics of all ranks; leave fused at False")
        super().__init__(**kwargs)
        self.process_set = process_set


def _of_all_ranks(backend: Any, mean: Any, variance: Any, count: Any, name: str, ranks: ProcessSet) -> tuple[Any, Any]:
    """Returns the mean and biased variance over all ranks' values. `count` is the number of values on this rank.

    The ranks reduce sums in float64, so that a mean far from zero does not cancel the variance.
    """
    math = backend.math
    here = math.cast(count, "float64")
    zero = math.zeros_like(math.cast(mean, "float64"))

    def weighted(moment: Any) -> Any:
        return math.where(here > 0, moment * here, zero)  # moments of an empty batch are NaN

    wide_mean = math.cast(mean, "float64")
    squares = math.cast(variance, "float64") + wide_mean * wide_mean
    sums = math.stack([weighted(wide_mean), weighted(squares), zero + here])
    with backend.outside_of_scopes():
        totals = backend.framework.allreduce(sums, op=Sum, name=name, process_set=ranks)
    everywhere = math.maximum(totals[2], 1.0)
    global_mean = totals[0] / everywhere
    global_variance = math.maximum(totals[1] / everywhere - global_mean * global_mean, 0.0)
    return math.cast(global_mean, mean.dtype), math.cast(global_variance, variance.dtype)


@keras.saving.register_keras_serializable(package="perseus_like")
class SyncBatchNormalization(SyncBatchNormalizationImpl, keras.layers.BatchNormalization):  # type: ignore[misc]
    __doc__ = SyncBatchNormalizationImpl.__doc__
