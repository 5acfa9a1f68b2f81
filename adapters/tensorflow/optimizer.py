"""DistributedOptimizer for optimizers of TensorFlow 1. perseus_like.tensorflow.keras has the one for Keras."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from functools import partial
from typing import Any

import tensorflow as tf

from perseus_like import world
from perseus_like.collectives import Adasum, Average
from perseus_like.gradients import Groups, gradient_rules, number_of_groups
from perseus_like.process_sets import ProcessSet, global_process_set

from .compression import Compression
from .gradient_aggregation import LocalGradientAggregationHelper
from .gradients import OPS, TensorFlowReducer, with_shared_attributes
from .ops import reduce_dense
from .variables import key_of, plain

_LegacyOptimizer: Any = tf.compat.v1.train.Optimizer


class _DistributedOptimizer(_LegacyOptimizer):  # type: ignore[misc]
    """The methods that are added to the wrapped optimizer's class. The two optimizers share their state."""

    _perseus_reduction: TensorFlowReducer
    _perseus_aggregation: LocalGradientAggregationHelper | None = None
    _perseus_wrapped: Any

    def __getattr__(self, name: str) -> Any:
        """Returns Horovod's private attributes: `_optimizer`, the wrapped optimizer, and `_agg_helper`."""
        if name == "_optimizer":
            return self._perseus_wrapped
        if name == "_agg_helper":
            return self._perseus_aggregation
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Returns the wrapped optimizer's pairs of gradient and variable, reduced over all ranks."""
        pairs = super().compute_gradients(*args, **kwargs)
        if not self._perseus_reduction.rules.communicates and self._perseus_aggregation is None:
            return list(pairs)
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        reduce = self._perseus_reduction
        if self._perseus_aggregation is not None:
            reduced = self._perseus_aggregation.compute_gradients(gradients, variables)
        else:
            reduced = reduce(gradients, variables)
        return list(zip(reduced, variables, strict=True))

    def apply_gradients(
        self, grads_and_vars: Iterable[Any], global_step: Any = None, name: str | None = None, **more: Any
    ) -> Any:
        """Steps. With backward_passes_per_step=N, only every N-th call steps."""
        pairs = list(grads_and_vars)  # read twice
        apply = partial(super().apply_gradients, pairs, global_step, name, **more)
        if self._perseus_aggregation is None:
            return apply()
        return self._perseus_aggregation.apply_gradients(apply, self, pairs, global_step)

    def register_local_var(self, var: Any) -> None:
        """Marks a variable as local: its gradient is not reduced; see `scale_local_gradients`."""
        self._perseus_reduction.register_local(var)


class _DistributedAdasumOptimizer(_DistributedOptimizer):
    """The methods for op=Adasum: the rank steps with its own gradients, and Adasum combines the steps of all ranks."""

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Returns this rank's gradients, which are not reduced."""
        return list(super(_DistributedOptimizer, self).compute_gradients(*args, **kwargs))

    def apply_gradients(
        self, grads_and_vars: Iterable[Any], global_step: Any = None, name: str | None = None, **more: Any
    ) -> Any:
        """Steps locally, then replaces the step by Adasum of all ranks' steps."""
        pairs = list(grads_and_vars)
        local_step = partial(super(_DistributedOptimizer, self).apply_gradients, pairs, global_step, name, **more)
        rules, reduction = self._perseus_reduction.rules, self._perseus_reduction
        variables = [plain(variable) for gradient, variable in pairs if gradient is not None]
        if not rules.communicates or not variables:
            return local_step()
        starts = [tf.identity(variable.read_value()) for variable in variables]
        with tf.control_dependencies(starts):
            stepped = local_step()
        with tf.control_dependencies([stepped] if not tf.executing_eagerly() else []):
            deltas = [variable.read_value() - start for variable, start in zip(variables, starts, strict=True)]
        sums = reduce_dense(
            *(deltas, Adasum, f"{reduction.name}.steps", (1.0, 1.0), rules.process_set),
            compression=rules.compression,
            grouped=True,
        )
        moves = [variable.assign(start + total) for variable, start, total in zip(variables, starts, sums, strict=True)]
        return None if tf.executing_eagerly() else tf.group(*moves)


def DistributedOptimizer(  # noqa: N802
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Returns an optimizer of the same class, with the same state, that steps with the gradients of all ranks.

    Args:
        optimizer: a tf.compat.v1.train optimizer, or one of Keras.
        name: the prefix of the names of requests, for error texts.
        use_locking: ignored; the wrapped optimizer has this option.
        device_dense: the device on which dense gradients are reduced; "" for the device they are on.
        device_sparse: the same for IndexedSlices.
        compression: `Compression.none`, `fp16`, `bf16`, or a `Compressor`.
        sparse_as_dense: convert IndexedSlices to dense gradients, and reduce them in buckets.
        backward_passes_per_step: the number of backward passes whose gradients are summed before they are reduced.
        op: Average, Sum, or Adasum, which combines the steps of the ranks.
        gradient_predivide_factor: f: gradients are divided by f before the sum and by size/f after it.
        average_aggregated_gradients: divide sums of backward passes by their number.
        groups: lists of variables whose gradients are reduced together, or the number of groups.
        num_groups: deprecated; a number of groups.
        process_set: the ranks that train together. On other ranks the optimizer does not communicate.
        scale_local_gradients: divide gradients of local variables by the number of ranks.

    Returns:
        An optimizer of the class of `optimizer`.

    Raises:
        ValueError: an argument is not supported, or the optimizer is a DistributedOptimizer already. The errors of
            collectives are raised by its steps.

    Examples:
        >>> optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.01 * hvd.size()))
        >>> weights = tf.Variable([1.0, 2.0])
        >>> _ = optimizer.apply_gradients([(tf.constant([1.0, 1.0]), weights)])
    """
    if not isinstance(optimizer, _LegacyOptimizer):
        return _of_keras(
            *(optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor),
            *(op, backward_passes_per_step, average_aggregated_gradients, num_groups, groups, process_set),
            scale_local_gradients,
        )
    if isinstance(optimizer, _DistributedOptimizer):
        raise ValueError("DistributedOptimizer: the optimizer is one already; pass the optimizer that it wraps")
    rules = gradient_rules(
        *(OPS, op, gradient_predivide_factor, number_of_groups(num_groups, groups), key_of, process_set, compression),
        *(sparse_as_dense, scale_local_gradients),
    )
    prefix = name or f"Distributed{type(optimizer).__name__}"
    reduction = TensorFlowReducer(prefix, rules, device_dense, device_sparse, is_optimizer=True)
    added = _DistributedAdasumOptimizer if rules.op is Adasum else _DistributedOptimizer
    distributed = with_shared_attributes(optimizer, added)
    distributed._perseus_reduction = reduction
    distributed._perseus_wrapped = optimizer
    if backward_passes_per_step != 1:
        if added is _DistributedAdasumOptimizer:
            raise ValueError("backward_passes_per_step works with op=Average or Sum, not with Adasum; leave it at 1")
        distributed._perseus_aggregation = LocalGradientAggregationHelper(
            backward_passes_per_step,
            reduction,
            sparse_as_dense,
            average_aggregated_gradients,
            rank=world.rank(),
            optimizer_type=_LegacyOptimizer,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        )
    return distributed


def _of_keras(optimizer: Any, *rest: Any) -> Any:
    if not hasattr(optimizer, "apply_gradients"):
        raise ValueError(
            f"DistributedOptimizer takes an optimizer of tf.compat.v1.train or of Keras, not {type(optimizer).__name__}"
        )
    # Keras takes seconds to import, and many programs do without.
    return importlib.import_module(f"{__package__}.keras").DistributedOptimizer(optimizer, *rest)
