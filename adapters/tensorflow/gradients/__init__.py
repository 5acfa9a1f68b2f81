"""Reduction of the gradients of tapes and optimizers over all ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import tensorflow as tf

from perseus_like.collectives import Adasum, Average, Sum
from perseus_like.gradients import GradientReducer, GradientRules, Groups, gradient_rules
from perseus_like.gradients.buckets import Member
from perseus_like.process_sets import ProcessSet, global_process_set

from ..ops import allreduce, reduce_dense
from ..rank_tensors import number
from ..requests.arguments import member_id
from ..variables import key_of

OPS = (Average, Sum, Adasum)


class TensorFlowReducer(GradientReducer):
    """The reduction of one tape or optimizer, eagerly and in graphs."""

    def __init__(
        self,
        name: str,
        rules: GradientRules,
        device_dense: str = "",
        device_sparse: str = "",
        name_in_threads: str = "",
        is_optimizer: bool = False,
    ) -> None:
        super().__init__(name, rules, name_in_threads, is_optimizer)
        self._devices = (device_dense, device_sparse)

    @staticmethod
    def key_of(variable: Any) -> Hashable:
        key: Hashable = key_of(variable)
        return key

    def member(self, gradient: Any, variable: Any) -> Member[str]:
        dtype = tf.as_dtype(variable.dtype).base_dtype
        if isinstance(gradient, tf.Tensor):
            dtype = gradient.dtype
        return Member(tf.TensorShape(variable.shape).num_elements() or 0, dtype.size, dtype.name)

    def zeros(self, shape: list[int], kind: str) -> Any:
        return tf.zeros(shape, kind)

    def is_sparse(self, gradient: Any) -> bool:
        return isinstance(gradient, tf.IndexedSlices)

    def dense(self, gradient: Any) -> Any:
        return tf.convert_to_tensor(gradient)

    def divided(self, gradient: Any) -> Any:
        return divided_by_ranks(gradient, member_id(self.rules.process_set))

    def start_dense(self, name: str, members: list[Any], member_names: str) -> list[Any]:
        rules = self.rules
        with tf.device(self._devices[0]):
            return reduce_dense(
                *(members, rules.op, name, rules.factors, rules.process_set, rules.compression),
                grouped=True,
                member_names=member_names,
            )

    def after(self, started: list[Any]) -> Any:
        return tf.control_dependencies(started[0][:1]) if started else contextlib.nullcontext()

    def finished(self, started: list[Any]) -> list[list[Any]]:
        return started

    def reduce_sparse(self, name: str, gradient: Any) -> Any:
        rules = self.rules
        return allreduce(
            gradient,
            op=rules.op,
            device_sparse=self._devices[1],
            prescale_factor=rules.prescale,
            postscale_factor=rules.postscale,
            name=name,
            process_set=rules.process_set,
        )


def divided_by_ranks(gradient: Any, process_set_id: int) -> Any:
    """Returns a gradient divided by the number of ranks, which a graph looks up when it runs."""
    ranks = number("size", process_set_id)
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values / tf.cast(ranks, gradient.values.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(ranks, gradient.dtype)


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
    factor = gradient_predivide_factor
    rules = gradient_rules(OPS, op, factor, groups, key_of, process_set, compression, sparse_as_dense)
    reduction = TensorFlowReducer(name, rules, device_dense, device_sparse)

    def allreduce_grads(grads: Iterable[Any], vars: Iterable[Any] | None = None, *_: Any) -> list[Any]:
        gradients = list(grads)
        if vars is not None:
            return reduction(gradients, list(vars))
        there = [gradient for gradient in gradients if gradient is not None]
        reduced = iter(reduction(there, there))
        return [None if gradient is None else next(reduced) for gradient in gradients]

    return allreduce_grads


def with_shared_attributes(wrapped: Any, added: type) -> Any:
    """Returns an object with the attributes of `wrapped`, and the methods of `added` and of the class of `wrapped`.

    An attribute that is set on one of the two is set on the other, so either may be used. No constructor is called.
    """
    cls = type(wrapped)
    other: Any = object.__new__(type(cls.__name__, (added, cls), {"__module__": cls.__module__}))
    # A copy: what is in the dictionary that `wrapped` was made with would be cleared by CPython 3.13.0's collector.
    wrapped.__dict__ = other.__dict__ = dict(vars(wrapped))
    return other
