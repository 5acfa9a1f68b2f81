"""DistributedGradientTape: a gradient tape that reduces its gradients over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from perseus_like.collectives import Average
from perseus_like.docstrings import documented_as
from perseus_like.gradients import Groups, gradient_rules, layers_of, number_of_groups
from perseus_like.process_sets import ProcessSet, global_process_set

from .compression import Compression
from .gradients import OPS, TensorFlowReducer, with_shared_attributes
from .variables import key_of

Pairs = list[tuple[Any, Any]]


class _DistributedGradientTape(tf.GradientTape):  # type: ignore[misc]
    """The methods that are added to the wrapped tape's class. The two tapes share their state."""

    _perseus_reduction: TensorFlowReducer

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Returns the reduced gradients, in the structure of `sources`. `use_generic_names` is ignored."""
        gradients = super().gradient(target, sources, output_gradients, unconnected_gradients)
        reduced = self._perseus_reduction(tf.nest.flatten(gradients), tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(sources, reduced)

    def register_local_source(self, source: Any) -> None:
        """Marks a source as local: its gradient is not reduced.

        It is divided by the number of ranks unless `scale_local_gradients` is False.
        """
        self._perseus_reduction.register_local(source)

    def get_local_and_global_gradients(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[Pairs, Pairs]:
        """Returns pairs of source and gradient: those of local sources, and the reduced ones of all others."""
        gradients = tf.nest.flatten(self.gradient(target, sources, output_gradients))
        pairs = list(zip(tf.nest.flatten(sources), gradients, strict=True))
        is_local = self._perseus_reduction.is_local
        return (
            [pair for pair in pairs if is_local(pair[0])],
            [pair for pair in pairs if not is_local(pair[0])],
        )


def DistributedGradientTape(  # noqa: N802
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Returns a tape of the same class, with the records of the given one, whose `gradient` reduces over all ranks.

    All ranks call `gradient` of their tapes in the same order, also if several threads call it in turn. If the threads
    have another order, or call it at the same time, this is an error on all ranks.

    Args:
        gradtape: a tf.GradientTape, persistent or not, before or after it has recorded.
        device_dense: the device on which dense gradients are reduced; "" for the device they are on.
        device_sparse: the same for IndexedSlices.
        compression: `Compression.none`, `fp16`, `bf16`, or a `Compressor`.
        sparse_as_dense: convert IndexedSlices to dense gradients, and reduce them in buckets.
        op: Average, Sum or Adasum.
        gradient_predivide_factor: f: gradients are divided by f before the sum and by size/f after it.
        groups: lists of variables whose gradients are reduced together, or the number of groups.
        num_groups: deprecated; a number of groups.
        process_set: the ranks that train together. On other ranks the tape does not communicate.
        scale_local_gradients: divide gradients of local sources by the number of ranks.

    Returns:
        A tape of the class of `gradtape`.

    Raises:
        ValueError: an argument is not supported, or the tape is a DistributedGradientTape already. The errors of
            collectives are raised by `gradient`.

    Examples:
        >>> weights = tf.Variable([1.0, 2.0])
        >>> with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        ...     loss = tf.reduce_sum(weights * weights)
        >>> tape.gradient(loss, [weights])[0].numpy()
        array([2., 4.], dtype=float32)
    """
    if not isinstance(gradtape, tf.GradientTape):
        raise ValueError(f"DistributedGradientTape takes a tf.GradientTape, not {type(gradtape).__name__}")
    if isinstance(gradtape, _DistributedGradientTape):
        raise ValueError(
            "DistributedGradientTape: the tape is a DistributedGradientTape already; pass a tf.GradientTape"
        )
    rules = gradient_rules(
        *(OPS, op, gradient_predivide_factor, number_of_groups(num_groups, groups), key_of, process_set, compression),
        *(sparse_as_dense, scale_local_gradients),
    )
    reduction = TensorFlowReducer("DistributedGradientTape", rules, device_dense, device_sparse)
    tape = with_shared_attributes(gradtape, _DistributedGradientTape)  # either may be used while the tape records
    tape._perseus_reduction = reduction
    return tape


@documented_as(DistributedGradientTape)
def PartialDistributedGradientTape(  # noqa: N802
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any | Sequence[Any] | None = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Does the same as DistributedGradientTape, but does not reduce the gradients of `local_layers`.

    Args:
        local_layers: a layer or a list of layers, whose gradients stay those of each rank.

    Examples:
        >>> weights = tf.Variable([1.0, 2.0])
        >>> with hvd.PartialDistributedGradientTape(tf.GradientTape()) as tape:
        ...     loss = tf.reduce_sum(weights * weights)
        >>> tape.gradient(loss, [weights])[0].numpy()
        array([2., 4.], dtype=float32)
    """
    tape = DistributedGradientTape(
        *(gradtape, device_dense, device_sparse, compression, sparse_as_dense, op, gradient_predivide_factor),
        *(num_groups, groups, process_set, scale_local_gradients),
    )
    for layer in layers_of(local_layers):
        for variable in layer.trainable_weights:
            tape.register_local_source(variable)
    return tape
