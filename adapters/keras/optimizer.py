"""DistributedOptimizer: a Keras optimizer that steps with the gradients of all ranks."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import keras

from perseus_like.collectives import Average, Sum
from perseus_like.docstrings import documented_as
from perseus_like.gradients import Groups, checked_passes, gradient_rules, layers_of, number_of_groups
from perseus_like.process_sets import ProcessSet, global_process_set

from . import backends
from .compat.optimizers import KERAS_2, KERAS_3, LEGACY, count_step, generation_of, variables_of
from .distribution import Distribution, innermost, reserve_name
from .loss_scale import reduce_before_the_finite_check

Compression = backends.chosen().framework.Compression

_KEY = "_perseus_distribution"


def distribution_of(optimizer: Any) -> Distribution | None:
    """Returns the state of a DistributedOptimizer; None for another optimizer."""
    return vars(optimizer).get(_KEY) if isinstance(optimizer, _DistributedOptimizer) else None


class _DistributedOptimizer:
    """The methods of all wrapped classes. An object without a distribution, such as a copy, is a plain optimizer."""

    def register_local_var(self, var: Any) -> None:
        """Marks a variable as local: its gradient is not reduced."""
        distribution = distribution_of(self)
        if distribution is None:
            raise ValueError(
                "register_local_var: this copy of a DistributedOptimizer is a plain optimizer; wrap it again"
            )
        distribution.register_local(var)

    @property
    def _agg_helper(self) -> Any:
        """The object that sums gradients over passes, by Horovod's name; None if every call is a step."""
        distribution = distribution_of(self)
        return None if distribution is None else distribution.passes

    def _active(self) -> Distribution | None:
        distribution = distribution_of(self)
        return None if distribution is None or distribution.suspended else distribution


class _Keras3(_DistributedOptimizer):
    """Optimizers of Keras 3, which make all their steps through `apply`."""

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        inner: Any = super()
        distribution = self._active()
        if distribution is None or not len(grads):
            inner.apply(grads, trainable_variables)
            return
        # The step may run in a condition, in which no variables can be made.
        variables = variables_of(self) if trainable_variables is None else list(trainable_variables)
        if not self.built:  # type: ignore[has-type]
            with backends.chosen().outside_of_functions():
                self.build(variables)  # type: ignore[attr-defined]
            self.built = True
        distribution.step(
            list(grads),
            variables,
            lambda reduced: inner.apply(reduced, trainable_variables),
            lambda: count_step(innermost(self)),
        )


class _Keras2(_DistributedOptimizer):
    """Optimizers of Keras 2.11 and later."""

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> list[tuple[Any, Any]]:
        inner: Any = super()
        distribution = self._active()
        pairs: list[tuple[Any, Any]] = inner.compute_gradients(loss, var_list, tape=tape)
        return pairs if distribution is None else distribution.compute(pairs)

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[tuple[Any, Any]]:
        """Does the same as `compute_gradients`, by Horovod's name. `grad_loss` is ignored."""
        return self.compute_gradients(loss, var_list, tape)

    def minimize(self, *args: Any, **kwargs: Any) -> Any:
        """Steps with the gradients that it computes."""
        return _minimized(self._active(), super().minimize, args, kwargs)  # type: ignore[misc]

    def aggregate_gradients(self, grads_and_vars: Iterable[Any]) -> Any:
        """Reduces gradients. A LossScaleOptimizer around this optimizer calls it before its check for infinities."""
        distribution = self._active()
        return grads_and_vars if distribution is None else _aggregated(distribution, grads_and_vars)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[Any],
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
        **more: Any,
    ) -> Any:
        inner: Any = super()
        distribution = self._active()
        aggregate = not skip_gradients_aggregation and more.pop("experimental_aggregate_gradients", True)
        gradients, variables = _unzip(grads_and_vars)
        if distribution is None or not (aggregate or distribution.sums_computed(variables)):
            if distribution is not None:
                distribution.forget_computed()
            pairs = list(zip(gradients, variables, strict=True))
            return inner.apply_gradients(pairs, name=name, skip_gradients_aggregation=not aggregate)
        with backends.chosen().outside_of_functions():
            self.build(variables)  # type: ignore[attr-defined]

        def apply(reduced: list[Any]) -> object:
            pairs = list(zip(reduced, variables, strict=True))
            return inner.apply_gradients(pairs, name=name, skip_gradients_aggregation=True)

        distribution.step(gradients, variables, apply, lambda: self.iterations.assign_add(1))  # type: ignore[attr-defined]
        return self.iterations  # type: ignore[attr-defined]


class _Legacy(_DistributedOptimizer):
    """Optimizers of `keras.optimizers.legacy` in Keras 2, also in graphs with sessions."""

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[tuple[Any, Any]]:
        inner: Any = super()
        distribution = self._active()
        pairs: list[tuple[Any, Any]] = inner._compute_gradients(loss, var_list, grad_loss, tape=tape)
        return pairs if distribution is None else distribution.compute(pairs)

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> list[tuple[Any, Any]]:
        """Returns the gradients that `minimize` computes, reduced over all ranks."""
        return self._compute_gradients(loss, var_list, tape=tape)

    def minimize(self, *args: Any, **kwargs: Any) -> Any:
        """Steps with the gradients that it computes."""
        return _minimized(self._active(), super().minimize, args, kwargs)  # type: ignore[misc]

    def _aggregate_gradients(self, grads_and_vars: Iterable[Any]) -> Any:
        distribution = self._active()
        if distribution is None:
            return super()._aggregate_gradients(grads_and_vars)  # type: ignore[misc]
        return _aggregated(distribution, grads_and_vars)

    def apply_gradients(
        self, grads_and_vars: Iterable[Any], name: str | None = None, experimental_aggregate_gradients: bool = True
    ) -> Any:
        inner: Any = super()
        distribution = self._active()
        gradients, variables = _unzip(grads_and_vars)
        if distribution is None or not (experimental_aggregate_gradients or distribution.sums_computed(variables)):
            if distribution is not None:
                distribution.forget_computed()
            pairs = list(zip(gradients, variables, strict=True))
            return inner.apply_gradients(pairs, name, experimental_aggregate_gradients)
        with backends.chosen().outside_of_functions():
            self._create_all_weights(variables)  # type: ignore[attr-defined]

        def apply(reduced: list[Any]) -> object:
            return inner.apply_gradients(list(zip(reduced, variables, strict=True)), name, False)

        return distribution.step(gradients, variables, apply, lambda: self.iterations.assign_add(1))  # type: ignore[attr-defined]


def _minimized(distribution: Distribution | None, minimize: Any, args: Any, kwargs: Any) -> Any:
    with contextlib.nullcontext() if distribution is None else distribution.apply_at_once():
        return minimize(*args, **kwargs)


def _aggregated(distribution: Distribution, grads_and_vars: Iterable[Any]) -> list[Any]:
    """Reduces for a LossScaleOptimizer of Keras 2, which then decides whether to call the optimizer."""
    if distribution.passes is not None:
        raise ValueError(
            "backward_passes_per_step does not work within a LossScaleOptimizer; use the other order: "
            "DistributedOptimizer(LossScaleOptimizer(optimizer), backward_passes_per_step=…)"
        )
    gradients, variables = _unzip(grads_and_vars)
    return list(zip(distribution.reduce_once(gradients, variables), variables, strict=True))


def _unzip(grads_and_vars: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    pairs = list(grads_and_vars)
    return [gradient for gradient, _ in pairs], [variable for _, variable in pairs]


@functools.cache
def _extended(base: type) -> type:
    """Returns a class that is saved under the name of its base, so that loading a model does not need perseus_like."""
    generation = generation_of(base)
    if generation is None:
        raise ValueError(f"DistributedOptimizer takes an optimizer of Keras, not {base.__name__}")
    if generation == KERAS_3:
        reduce_before_the_finite_check(distribution_of)
    kind = {KERAS_3: _Keras3, KERAS_2: _Keras2, LEGACY: _Legacy}[generation]
    names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    extended = type(base.__name__, (kind, base), names)
    registered = keras.saving.get_registered_name(base)
    if registered != base.__name__:
        package, _, name = registered.partition(">")
        keras.saving.register_keras_serializable(package, name)(extended)
        keras.saving.get_custom_objects()[registered] = base
    return extended


def _distribute(optimizer: Any, distribution: Distribution) -> Any:
    """Returns an object of the extended class that shares the state of `optimizer`."""
    wrapped: Any = type(optimizer)
    distributed: Any = object.__new__(_extended(wrapped))
    object.__setattr__(distributed, "__dict__", vars(optimizer))
    vars(distributed)[_KEY] = distribution
    return distributed


def distribute(
    optimizer: Any,
    name: str | None,
    device_dense: str,
    device_sparse: str,
    compression: Any,
    sparse_as_dense: bool,
    gradient_predivide_factor: float,
    op: int,
    backward_passes_per_step: int,
    average_aggregated_gradients: bool,
    groups: Groups,
    process_set: ProcessSet,
    scale_local_gradients: bool,
    local_layers: Any = None,
) -> Any:
    """Returns the DistributedOptimizer or PartialDistributedOptimizer for an optimizer of any release of Keras."""
    if isinstance(optimizer, str):
        optimizer = keras.optimizers.get(optimizer)
    if distribution_of(innermost(optimizer)) is not None or distribution_of(optimizer) is not None:
        raise ValueError("this optimizer is a DistributedOptimizer already")
    layers = layers_of(local_layers)
    backend = backends.chosen()
    rules = gradient_rules(
        *((Average, Sum), op, gradient_predivide_factor, groups, backend.Reducer.key_of, process_set, compression),
        *(sparse_as_dense, scale_local_gradients),
    )
    passes = (checked_passes(backward_passes_per_step), average_aggregated_gradients)
    in_threads = reserve_name(name or "gradients_of_thread")
    reducer = backend.Reducer(name or "gradients", rules, name_in_threads=in_threads, is_optimizer=True)
    return _distribute(optimizer, Distribution(backend, reducer, *passes, layers))


def DistributedOptimizer(  # noqa: N802
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: Groups = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Returns an optimizer of the same class, with the same state, whose steps use the gradients of all ranks.

    Gradients are reduced when the optimizer is called, before they are clipped or checked for infinities. A gradient
    that is None on all ranks is left out. One that is None on some ranks is a HorovodInternalError on all.

    Args:
        optimizer: of Keras 3 or Keras 2, with any schedule, or a LossScaleOptimizer; it shares its state with the
            result. `LossScaleOptimizer(DistributedOptimizer(…))`, as `compile` makes for mixed_float16, works, too.
        name: the prefix of the names of collectives; by default "Distributed" and the optimizer's class.
        device_dense: accepted without effect: gradients stay on the device they are on.
        device_sparse: accepted without effect, as `device_dense`.
        compression: `Compression.none`, `fp16`, `bf16`, or a `Compressor`.
        sparse_as_dense: convert gradients of embeddings to dense ones.
        gradient_predivide_factor: f: gradients are divided by f before the sum and by size/f after it.
        op: Average or Sum.
        groups: lists of variables whose gradients are reduced together, or the number of groups.
        num_groups: deprecated; a number of groups.
        backward_passes_per_step: the number of calls whose gradients are summed, then reduced and applied. Each list of
            variables counts its own calls, and `iterations` counts every call.
        average_aggregated_gradients: average the gradients of these calls.
        process_set: the ranks that train together. On other ranks the optimizer does not communicate.
        scale_local_gradients: gradients of local variables are divided by the number of ranks.

    Returns:
        An optimizer of the class of `optimizer`.

    Raises:
        ValueError: an argument is not supported, or the optimizer is a DistributedOptimizer already. The errors of
            collectives are raised by its steps.

    Examples:
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size()))
        >>> model.compile(optimizer, loss="mse")
    """
    groups = number_of_groups(num_groups, groups)
    return distribute(
        *(optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op),
        *(backward_passes_per_step, average_aggregated_gradients, groups, process_set, scale_local_gradients),
    )


@documented_as(DistributedOptimizer)
def PartialDistributedOptimizer(  # noqa: N802
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Returns a DistributedOptimizer that does not reduce the gradients of `local_layers`.

    Args:
        local_layers: a layer or a list of layers, whose gradients stay those of each rank.

    Examples:
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> sgd = keras.optimizers.SGD(0.01 * hvd.size())
        >>> optimizer = hvd.PartialDistributedOptimizer(sgd, local_layers=model.layers[0])
        >>> model.compile(optimizer, loss="mse")
    """
    return distribute(
        *(optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op),
        *(backward_passes_per_step, average_aggregated_gradients, groups, process_set, scale_local_gradients),
        local_layers,
    )
