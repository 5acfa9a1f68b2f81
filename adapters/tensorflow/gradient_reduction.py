"""Reduction of the gradients of tapes and optimizers over all ranks.

Dense gradients are reduced in buckets, one request for each. The variables alone determine the bucket of a gradient, so
ranks with different gradients make the same requests and get an error: in its bucket, an empty tensor of shape [0]
stands for a missing gradient, and one of shape [0, 0] for a sparse gradient. All other requests start after the first
bucket, which also contains the number of buckets. If ranks have different models, the first bucket therefore fails, and
no rank waits for requests that another rank does not make.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from perseus_like.collectives import Adasum, Average, Sum, gradient_rules
from perseus_like.gradients import Bucket, Member, divide_into_groups, lay_out
from perseus_like.process_sets import ProcessSet, global_process_set
from perseus_like.protocol.messages import is_elastic

from .arguments import member_id
from .compression import Compression
from .numbers import number
from .ops import allreduce, reduce_dense
from .variables import key_of

Groups = int | Sequence[Sequence[Any]] | None


class GradientReduction:
    """The reduction of one tape or optimizer. Call it with gradients and their variables, in the same order."""

    def __init__(
        self,
        name: str,
        op: int = Average,
        compression: Any = Compression.none,
        sparse_as_dense: bool = False,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Groups = None,
        process_set: ProcessSet = global_process_set,
        device_dense: str = "",
        device_sparse: str = "",
        scale_local_gradients: bool = True,
    ) -> None:
        """Checks the options. Raises ValueError if they contradict each other.

        `name` is the prefix of the names of requests. Two reductions that run at once need different names. `groups`
        are lists of variables whose gradients are reduced together, or the number of groups.
        """
        self.op, self._factors = gradient_rules(op, gradient_predivide_factor, (Average, Sum, Adasum))
        if num_groups:
            warnings.warn("num_groups is deprecated; pass the number as groups", stacklevel=3)
        self.name = name
        self.process_set = process_set
        self.sparse_as_dense = sparse_as_dense
        self.scale_local_gradients = scale_local_gradients
        self.compression = compression
        self._groups = _checked_groups(groups if groups is not None else (num_groups or None))
        self._devices = (device_dense, device_sparse)
        self._local: set[Any] = set()

    def register_local(self, variable: Any) -> None:
        """Marks a variable as local: its gradient is not reduced; see `scale_local_gradients`."""
        self._local.add(key_of(variable))

    def is_local(self, variable: Any) -> bool:
        return key_of(variable) in self._local

    @property
    def communicates(self) -> bool:
        """False if no other rank takes part: the process set has one rank, or this rank is not in it.

        An elastic job with one rank may get more ranks later, and a function is traced only once.
        """
        if not self.process_set.included():
            return False
        member_id(self.process_set)  # raises ValueError for a set that is not registered
        return self.process_set.size() != 1 or is_elastic()

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Returns the reduced gradients. A gradient that is None on all ranks stays None."""
        if not self.communicates:
            return list(gradients)
        results = list(gradients)
        shared = [index for index, variable in enumerate(variables) if not self.is_local(variable)]
        reduced = self._reduce([gradients[index] for index in shared], [variables[index] for index in shared])
        for index, gradient in zip(shared, reduced, strict=True):
            results[index] = gradient
        if self.scale_local_gradients:
            for index in set(range(len(results))) - set(shared):
                results[index] = self._scaled(results[index])
        return results

    def _scaled(self, gradient: Any) -> Any:
        """Returns a local gradient divided by the number of ranks, so that it has the weight of an averaged one."""
        if gradient is None:
            return None
        ranks = number("size", member_id(self.process_set))
        if isinstance(gradient, tf.IndexedSlices):
            values = gradient.values / tf.cast(ranks, gradient.values.dtype)
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return gradient / tf.cast(ranks, gradient.dtype)

    def _reduce(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        if self.sparse_as_dense:
            gradients = [
                tf.convert_to_tensor(each) if isinstance(each, tf.IndexedSlices) else each for each in gradients
            ]
        results: list[Any] = [None] * len(gradients)
        buckets = self._buckets(gradients, variables)
        first: list[Any] = []
        for number_, bucket in enumerate(buckets):
            extra = [len(buckets)] if number_ == 0 and len(buckets) > 1 else []
            with _after(first):
                reduced = self._reduce_bucket(number_, bucket, gradients, variables, extra)
            first = first or reduced[:1]
            for index, gradient in zip(bucket.members, reduced, strict=False):
                if gradients[index] is not None:
                    results[index] = gradient
        with _after(first):
            for index, gradient in enumerate(gradients):
                if isinstance(gradient, tf.IndexedSlices):
                    results[index] = self._reduce_sparse(index, gradient)
        return results

    def _buckets(self, gradients: list[Any], variables: list[Any]) -> list[Bucket[str]]:
        members = {
            index: _member(gradient, variable)
            for index, (gradient, variable) in enumerate(zip(gradients, variables, strict=True))
        }
        # A backward pass computes the gradients of the last layers first.
        order = range(len(members) - 1, -1, -1)
        return lay_out(members, order, self._indexes_of_groups(variables)).buckets

    def _indexes_of_groups(self, variables: list[Any]) -> list[list[int]] | None:
        if isinstance(self._groups, int):
            return divide_into_groups(len(variables), self._groups)
        if self._groups is None:
            return None
        indices = {key_of(variable): index for index, variable in enumerate(variables)}
        return [[indices[key] for key in group if key in indices] for group in self._groups]

    def _reduce_bucket(
        self, number_: int, bucket: Bucket[str], gradients: list[Any], variables: list[Any], extra: list[int]
    ) -> list[Any]:
        members = [_stand_in(gradients[index], bucket.kind) for index in bucket.members]
        members += [tf.zeros([0, count], bucket.kind) for count in extra]
        words = [f"gradient {index}, of {_words(gradients[index], variables[index])}" for index in bucket.members]
        words += [f"\tgradients of several types or sizes, in {count} buckets" for count in extra]
        with tf.device(self._devices[0]):
            return reduce_dense(
                *(members, self.op, f"{self.name}.gradients_{number_}", self._factors, self.process_set),
                compression=self.compression,
                grouped=True,
                member_names="\n".join(words),
            )

    def _reduce_sparse(self, index: int, gradient: Any) -> Any:
        return allreduce(
            gradient,
            op=self.op,
            device_sparse=self._devices[1],
            prescale_factor=self._factors[0],
            postscale_factor=self._factors[1],
            name=f"{self.name}.sparse_gradient_{index}",
            process_set=self.process_set,
        )


def local_variables(layers: Any) -> list[Any]:
    """Returns the trained variables of a layer or a list of layers. Raises ValueError for other objects."""
    given = [] if layers is None else list(layers) if isinstance(layers, list | tuple) else [layers]
    strange = [type(layer).__name__ for layer in given if not hasattr(layer, "trainable_weights")]
    if strange:
        raise ValueError(f"local_layers takes a layer or a list of layers, not {', '.join(strange)}")
    return [variable for layer in given for variable in layer.trainable_weights]


def _after(tensors: list[Any]) -> Any:
    return tf.control_dependencies(tensors) if tensors else contextlib.nullcontext()


def _make_allreduce_grads_fn(
    name: str,
    device_dense: str,
    device_sparse: str,
    compression: Any,
    sparse_as_dense: bool,
    op: int,
    gradient_predivide_factor: float,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[..., list[Any]]:
    """Returns a function of (gradients, variables) that reduces, as Horovod's private function of this name.

    Optimizers outside of this package are built on it. The function also works without variables.
    """
    reduction = GradientReduction(
        name=name,
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        groups=groups,
        process_set=process_set,
        device_dense=device_dense,
        device_sparse=device_sparse,
    )

    def allreduce_grads(grads: Iterable[Any], vars: Iterable[Any] | None = None, *_: Any) -> list[Any]:
        gradients = list(grads)
        if vars is not None:
            return reduction(gradients, list(vars))
        there = [gradient for gradient in gradients if gradient is not None]
        reduced = iter(reduction(there, there))
        return [None if gradient is None else next(reduced) for gradient in gradients]

    return allreduce_grads


def _member(gradient: Any, variable: Any) -> Member[str]:
    """Returns the size and dtype of the variable, for any gradient on this rank."""
    dtype = tf.as_dtype(variable.dtype).base_dtype
    if isinstance(gradient, tf.Tensor):
        dtype = gradient.dtype
    return Member(tf.TensorShape(variable.shape).num_elements() or 0, dtype.size, dtype.name)


def _stand_in(gradient: Any, dtype: str) -> Any:
    if gradient is None:
        return tf.zeros([0], dtype)
    return tf.zeros([0, 0], dtype) if isinstance(gradient, tf.IndexedSlices) else tf.convert_to_tensor(gradient)


def _words(gradient: Any, variable: Any) -> str:
    """Returns the variable's name in error texts; after a tab, what this rank has in place of a dense gradient."""
    name = str(getattr(variable, "path", None) or getattr(variable, "name", None) or "a tensor").removesuffix(":0")
    if gradient is None:
        return f"{name}\tno gradient"
    return f"{name}\ta sparse gradient" if isinstance(gradient, tf.IndexedSlices) else name


def _checked_groups(groups: Groups) -> int | list[list[Any]] | None:
    if groups is None or groups == 0:
        return None
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError(f"groups is {groups}; pass a positive number, or lists of variables")
        return groups
    if not isinstance(groups, list | tuple) or any(not isinstance(group, list | tuple) for group in groups):
        raise ValueError(f"groups is {groups!r}; pass a number, or a list of lists of variables")
    keys = [[key_of(variable) for variable in group] for group in groups]
    flat = [key for group in keys for key in group]
    if len(set(flat)) != len(flat):
        raise ValueError("groups: a variable occurs twice; put each variable in one group")
    return keys
