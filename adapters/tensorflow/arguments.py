"""Arguments of the verbs, checked before a request is made. Mistakes are ValueError and InvalidArgumentError."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from perseus_like import collectives
from perseus_like.errors import HorovodInternalError
from perseus_like.process_sets import GLOBAL, ProcessSet, global_process_set

from .errors import invalid_argument


@contextlib.contextmanager
def _as_tensorflow_errors() -> Iterator[None]:
    try:
        yield
    except HorovodInternalError:
        raise
    except ValueError as error:
        raise invalid_argument(str(error)) from None


def member_id(process_set: ProcessSet) -> int:
    """The core's id of a set. InvalidArgumentError if it is not registered, or if this rank is not in it."""
    if process_set is global_process_set:
        return GLOBAL
    with _as_tensorflow_errors():
        return collectives.member_id(process_set)


def root_within(root_rank: int, process_set: ProcessSet) -> int:
    """The rank in the set of a root given by its rank in the job. InvalidArgumentError if it is not there."""
    with _as_tensorflow_errors():
        return collectives.root_within(root_rank, process_set)


def as_tensor(value: Any) -> Any:
    """The tensor to communicate of a tensor, a variable or an array."""
    if isinstance(value, tf.Tensor):
        return value
    if not hasattr(value, "read_value"):
        return tf.convert_to_tensor(value)
    # In a graph, reads the variable anew: an older value may be cached. Eagerly, `value` reads too, without a copy.
    return value.value() if tf.executing_eagerly() and isinstance(value, tf.Variable) else value.read_value()


def with_rows(verb: str, value: Any) -> Any:
    """As `as_tensor`. InvalidArgumentError for a scalar, which has no rows to divide or join."""
    tensor = as_tensor(value)
    if tensor.shape.rank == 0:
        raise invalid_argument(f"{verb}: the tensor has no dimension 0 to divide or join; reshape it to one element")
    return tensor


def splits_of(splits: Any) -> Any:
    """The splits of an alltoall as an int32 tensor. InvalidArgumentError unless they are whole numbers."""
    tensor = tf.convert_to_tensor(splits)
    if tensor.dtype.is_floating and tensor.shape.num_elements() == 0:
        return tf.zeros([0], tf.int32)  # what TensorFlow makes of an empty list
    if not tensor.dtype.is_integer:
        raise invalid_argument(f"alltoall: splits must be whole numbers, not {tensor.dtype.name}; pass an int32 tensor")
    return tf.cast(tensor, tf.int32)
