"""Local gradient aggregation: gradients are summed over several backward passes, and reduced after the last one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from perseus_like.gradients import checked_passes, reduce_shared
from perseus_like.process_sets import ProcessSet, global_process_set

from .gradients import divided_by_ranks
from .gradients.gradient_sums import SumsOfLists
from .rank_tensors import size_op as size_op  # in Horovod, this module has it
from .variables import key_of


def apply_op_to_not_none_tensors(tensor_op: Callable[..., Any], tensors: Sequence[Any], *args: Any) -> list[Any]:
    """Returns `tensor_op(tensor, *args)` for each tensor; None stays None."""
    return [None if tensor is None else tensor_op(tensor, *args) for tensor in tensors]


def get_not_none_from_list(tensor_list: Sequence[Any]) -> list[Any]:
    """Returns the elements that are not None."""
    return [tensor for tensor in tensor_list if tensor is not None]


class LocalGradientAggregationHelper(SumsOfLists):
    """The sums of the gradients of one optimizer, and the number of passes in them, in variables.

    Each list of variables that `compute_gradients` is called with has its own sums, and counts its own passes.

    In a graph of TensorFlow 1 the variables are local ones: run `tf.compat.v1.local_variables_initializer()`, as
    monitored sessions do.

    Args:
        backward_passes_per_step: the number of backward passes in a step.
        allreduce_func: `allreduce_func(gradients, variables)` returns the reduced gradients.
        sparse_as_dense: convert IndexedSlices to tensors.
        average_aggregated_gradients: divide the sum by the number of passes.
        rank: ignored; an argument of Horovod.
        optimizer_type: ignored; an argument of Horovod.
        process_set: the ranks that train together.
        scale_local_gradients: divide gradients of local variables by the number of ranks.
        name: ignored; an argument of Horovod.

    Raises:
        ValueError: `backward_passes_per_step` is less than 1.

    Examples:
        >>> helper = hvd.LocalGradientAggregationHelper(2, lambda gradients, variables: gradients, False, True, 0, None)
        >>> helper.backward_passes_per_step
        2
    """

    # Horovod's values for `optimizer_type`.
    _OPTIMIZER_TYPE_KERAS = "optimizer_type_keras"
    _OPTIMIZER_TYPE_LEGACY = "optimizer_type_legacy"

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[[list[Any], list[Any]], list[Any]],
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        rank: int,
        optimizer_type: Any,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
        name: str = "",
    ) -> None:
        self.backward_passes_per_step = checked_passes(backward_passes_per_step)
        self.sparse_as_dense = sparse_as_dense
        self.average_aggregated_gradients = average_aggregated_gradients
        super().__init__()
        self._reduce = allreduce_func
        self._process_set = process_set
        self._scale_local_gradients = scale_local_gradients
        self._local: set[Any] = set()

    def register_local_var(self, var: Any) -> None:
        """Marks a variable as local: its gradient is not reduced."""
        self._local.add(key_of(var))

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """Adds to the sums. Returns the reduced sums at every N-th call, and this rank's sums at other calls."""
        grads = [self._dense(gradient) for gradient in grads]
        sums = self.sums_of(vars)
        added = [
            sums.make_total(place, gradient.dtype).assign_add(gradient)
            for place, gradient in enumerate(grads)
            if gradient is not None
        ]
        totals = list(sums.totals)  # also of gradients that are None in this pass
        with tf.control_dependencies([] if tf.executing_eagerly() else added):
            passes = sums.counter.assign_add(1)
        with tf.control_dependencies([] if tf.executing_eagerly() else [passes]):
            present = get_not_none_from_list(totals)
            values = [total.read_value() for total in present]
            is_last = tf.greater_equal(sums.counter.read_value(), self.backward_passes_per_step)

        def reduce() -> list[Any]:
            reduced = iter(self._reduced(self._spread(values, totals), vars))
            results = [gradient for gradient, total in zip(reduced, totals, strict=True) if total is not None]
            with tf.control_dependencies([] if tf.executing_eagerly() else results):
                clears = sums.clear()
            with tf.control_dependencies([] if tf.executing_eagerly() else clears):
                return [tf.identity(result) for result in results]

        results = tf.cond(is_last, reduce, lambda: [tf.identity(value) for value in values]) if values else []
        return self._spread(list(results) if isinstance(results, list | tuple) else [results], totals)

    def apply_gradients(self, apply_grads_closure: Callable[[], Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls the closure after a reduction. Otherwise only adds one to `global_step`, if it is given."""

        def skip() -> Any:
            step = kwargs.get("global_step", args[1] if len(args) > 1 else None)
            return tf.no_op() if step is None else tf.group(step.assign_add(1))

        pairs = list(args[0] if args else kwargs.get("grads_and_vars", ()))
        gradients = get_not_none_from_list([gradient for gradient, _ in pairs])
        sums = self.sums_with([variable for _, variable in pairs])
        if sums is None:
            return apply_grads_closure()
        if tf.executing_eagerly():
            return apply_grads_closure() if int(sums.counter) == 0 else skip()
        with tf.control_dependencies(gradients):
            is_reduced = tf.equal(sums.counter.read_value(), 0)

        def as_group(function: Callable[[], Any]) -> Callable[[], Any]:
            def run() -> Any:
                with tf.control_dependencies([tf.group(function())]):
                    return tf.constant(True)

            return run

        return tf.cond(is_reduced, as_group(apply_grads_closure), as_group(skip)).op

    def _dense(self, gradient: Any) -> Any:
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        if not self.sparse_as_dense:
            raise ValueError(
                "backward_passes_per_step: IndexedSlices cannot be summed over passes; pass sparse_as_dense=True"
            )
        return tf.convert_to_tensor(gradient)

    def _reduced(self, sums: list[Any], vars: Sequence[Any]) -> list[Any]:
        if self.average_aggregated_gradients:
            sums = apply_op_to_not_none_tensors(lambda total: total / self.backward_passes_per_step, sums)
        is_local = [key_of(var) in self._local for var in vars]
        set_id = self._process_set.require_id() if self._scale_local_gradients else None

        def reduce(shared: list[int]) -> list[Any]:
            return self._reduce([sums[index] for index in shared], [vars[index] for index in shared])

        divide = partial(divided_by_ranks, process_set_id=set_id) if set_id is not None else None
        return reduce_shared(sums, is_local, reduce, divide)

    @staticmethod
    def _spread(values: list[Any], totals: list[Any]) -> list[Any]:
        rest = iter(values)
        return [None if total is None else next(rest) for total in totals]


class LocalGradientAggregationHelperEager(LocalGradientAggregationHelper):
    """The same class with the name and the arguments that Horovod has for eager execution."""

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[[list[Any], list[Any]], list[Any]],
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        super().__init__(
            backward_passes_per_step,
            allreduce_func,
            sparse_as_dense,
            average_aggregated_gradients,
            rank=0,
            optimizer_type=None,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        )


# The names of this file, and further names of Horovod's module of this path.
__all__ = [
    "LocalGradientAggregationHelper",
    "apply_op_to_not_none_tensors",
    "get_not_none_from_list",
    "global_process_set",
    "size_op",
]
