"""DistributedOptimizer: a Keras optimizer that steps with the gradients of all ranks."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import keras

from perseus_like.collectives import Average, Sum
from perseus_like.process_sets import ProcessSet, global_process_set

from . import backends
from .distribution import Distribution, claim_name, innermost
from .loss_scale import reduce_before_the_finite_check

Groups = int | Sequence[Sequence[Any]] | None
Compression = backends.chosen().framework.Compression

_KEY = "_perseus_distribution"


def distribution_of(optimizer: Any) -> Distribution | None:
    """None for an optimizer that is not distributed."""
    return vars(optimizer).get(_KEY) if isinstance(optimizer, _DistributedOptimizer) else None


class _DistributedOptimizer:
    """What all wrapped classes have. Without a distribution (a copy has none) they are as the class they wrap."""

    def register_local_var(self, var: Any) -> None:
        """The gradient of `var` is this rank's own and not reduced."""
        distribution = distribution_of(self)
        if distribution is None:
            raise ValueError("a copy of a DistributedOptimizer is a plain optimizer; it reduces no gradients")
        distribution.register_local(var)

    @property
    def _agg_helper(self) -> Any:
        """Horovod's name for what sums gradients over backward passes; None without `backward_passes_per_step`."""
        distribution = distribution_of(self)
        return None if distribution is None else distribution.passes

    def _active(self) -> Distribution | None:
        distribution = distribution_of(self)
        return None if distribution is None or distribution.suspended else distribution


class _Keras3(_DistributedOptimizer):
    """Optimizers whose one way to a step is `apply`."""

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        inner: Any = super()
        distribution = self._active()
        if distribution is None or not len(grads):
            inner.apply(grads, trainable_variables)
            return
        # Before a step that may be within a condition, where nothing can be made.
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)  # type: ignore[attr-defined]
        if not self.built:  # type: ignore[has-type]
            with backends.chosen().outside_of_functions():
                self.build(variables)  # type: ignore[attr-defined]
            self.built = True
        distribution.step(
            list(grads),
            variables,
            lambda reduced: inner.apply(reduced, trainable_variables),
            lambda: innermost(self)._iterations.assign_add(1),
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
        """Horovod's name of `compute_gradients`. `grad_loss` has no meaning for these optimizers."""
        return self.compute_gradients(loss, var_list, tape)

    def aggregate_gradients(self, grads_and_vars: Iterable[Any]) -> Any:
        """A LossScaleOptimizer around this one calls it before it looks whether all gradients are finite."""
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
    """`keras.optimizers.legacy` of Keras 2, also in graphs with sessions."""

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[tuple[Any, Any]]:
        inner: Any = super()
        distribution = self._active()
        pairs: list[tuple[Any, Any]] = inner._compute_gradients(loss, var_list, grad_loss, tape=tape)
        return pairs if distribution is None else distribution.compute(pairs)

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> list[tuple[Any, Any]]:
        """As `minimize` computes them, reduced over all ranks."""
        return self._compute_gradients(loss, var_list, tape=tape)

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


def _aggregated(distribution: Distribution, grads_and_vars: Iterable[Any]) -> list[Any]:
    """For a LossScaleOptimizer of Keras 2, which decides by itself whether this one is called then."""
    if distribution.passes is not None:
        raise ValueError(
            "backward_passes_per_step within a LossScaleOptimizer; wrap the other way round: "
            "DistributedOptimizer(LossScaleOptimizer(optimizer), backward_passes_per_step=…)"
        )
    gradients, variables = _unzip(grads_and_vars)
    return list(zip(distribution.reduce_once(gradients, variables), variables, strict=True))


def _unzip(grads_and_vars: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    pairs = list(grads_and_vars)
    return [gradient for gradient, _ in pairs], [variable for _, variable in pairs]


@functools.cache
def _extended(base: type) -> type:
    """A class that is saved under the name of its base, so that a saved model needs nothing of ours to be loaded."""
    if hasattr(base, "apply"):
        kind: type = _Keras3
        reduce_before_the_finite_check(distribution_of)
    elif hasattr(base, "aggregate_gradients"):
        kind = _Keras2
    elif hasattr(base, "_aggregate_gradients"):
        kind = _Legacy
    else:
        raise ValueError(f"DistributedOptimizer takes an optimizer of Keras, not {base.__name__}")
    names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    extended = type(base.__name__, (kind, base), names)
    registered = keras.saving.get_registered_name(base)
    if registered != base.__name__:
        package, _, name = registered.partition(">")
        keras.saving.register_keras_serializable(package, name)(extended)
        keras.saving.get_custom_objects()[registered] = base
    return extended


def _distribute(optimizer: Any, distribution: Distribution) -> Any:
    """An object of the extended class, with the very state of `optimizer`: nothing is copied, nothing is lost."""
    wrapped: Any = type(optimizer)
    distributed: Any = object.__new__(_extended(wrapped))
    object.__setattr__(distributed, "__dict__", vars(optimizer))
    vars(distributed)[_KEY] = distribution
    return distributed


def distribute(
    optimizer: Any,
    name: str | None = None,
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    local_layers: Iterable[Any] = (),
) -> Any:
    """DistributedOptimizer and PartialDistributedOptimizer, whichever Keras the optimizer is of."""
    if isinstance(optimizer, str):
        optimizer = keras.optimizers.get(optimizer)
    if distribution_of(innermost(optimizer)) is not None or distribution_of(optimizer) is not None:
        raise ValueError("this optimizer is a DistributedOptimizer already")
    if op not in (Average, Sum):
        raise ValueError("DistributedOptimizer of Keras knows Average and Sum")
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step is {backward_passes_per_step}; it must be positive")
    _check_groups(groups)
    backend = backends.chosen()
    reduction = backend.GradientReduction(
        claim_name(name or f"Distributed{type(optimizer).__name__}"),
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    passes = (backward_passes_per_step, average_aggregated_gradients)
    return _distribute(optimizer, Distribution(backend, reduction, *passes, local_layers))


def _check_groups(groups: Groups) -> None:
    if groups is None or (isinstance(groups, int) and groups > 0):
        return
    if not isinstance(groups, list | tuple) or any(not isinstance(group, list | tuple) for group in groups):
        raise ValueError(f"groups is {groups!r}; it takes a positive number, or a list of lists of variables")


def number_of_groups(num_groups: int, groups: Groups) -> Groups:
    """`groups`, or what its older name says."""
    if not num_groups:
        return groups
    warnings.warn("num_groups is the older name of groups, which takes a number too", DeprecationWarning, stacklevel=3)
    return num_groups if groups is None else groups


def checked_layers(layers: Any, layer_class: type) -> list[Any]:
    """`local_layers` as a list. ValueError for what is no layer."""
    given = [] if layers is None else [layers] if isinstance(layers, layer_class) else list(layers)
    for layer in given:
        if not isinstance(layer, layer_class):
            raise ValueError(f"local_layers takes layers of Keras, not {layer!r}")
    return given


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
    """An optimizer of the same class, with the same state, whose steps use the gradients of all ranks.

    Gradients are reduced when the optimizer is called, before they are clipped or looked at for infinities. One that
    is None on all ranks is left out; one that is None on some is a HorovodInternalError on all.

    Args:
        optimizer: of Keras 3 or Keras 2, with any schedule, or a LossScaleOptimizer; it shares its state with the
            result. `LossScaleOptimizer(DistributedOptimizer(…))`, as `compile` makes for mixed_float16, works, too.
        name: what the collectives are called; "Distributed" and the optimizer's class by default.
        device_dense: accepted without effect: gradients stay on the device they are on.
        device_sparse: accepted without effect, as `device_dense`.
        compression: `Compression.fp16`, `bf16`: how gradients travel.
        sparse_as_dense: gradients of embeddings are made dense.
        gradient_predivide_factor: f: gradients are divided by f before and by size/f after they are summed.
        op: Average or Sum.
        groups: variables whose gradients travel together: lists of them, or the number of groups to make.
        num_groups: the older name for a number of groups.
        backward_passes_per_step: gradients of so many calls are summed, then reduced and applied. `iterations` counts
            every call.
        average_aggregated_gradients: they are averaged instead.
        process_set: the ranks that train together. On other ranks the optimizer does not communicate.
        scale_local_gradients: gradients of local variables are divided by the number of ranks.
    """
    return distribute(
        optimizer,
        name,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        number_of_groups(num_groups, groups),
        process_set,
        scale_local_gradients,
    )


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
    """A DistributedOptimizer that leaves the weights of `local_layers` (a layer, or a list of them) to each rank."""
    return distribute(
        optimizer,
        name,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        groups,
        process_set,
        scale_local_gradients,
        checked_layers(local_layers, keras.layers.Layer),
    )
