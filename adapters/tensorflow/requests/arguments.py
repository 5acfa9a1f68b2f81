"""Checks of the arguments of collectives. Wrong arguments are a ValueError and an InvalidArgumentError."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from perseus_like.collectives import arguments
from perseus_like.errors import HorovodInternalError
from perseus_like.process_sets import GLOBAL, ProcessSet, global_process_set
from perseus_like.session import session

from ..compat import eager_calls
from ..errors import invalid_argument

# Eager tensors are recognised by their exact type, because isinstance runs Python code of TensorFlow's metaclasses.
EagerTensor: Any = eager_calls.eager_tensor_class()


def _as_tensorflow_error(error: ValueError) -> ValueError:
    return error if isinstance(error, HorovodInternalError) else invalid_argument(str(error))


def member_id(process_set: ProcessSet) -> int:
    """Returns the core's id of a set. InvalidArgumentError if it is not registered, or if this rank is not in it."""
    if process_set is global_process_set:
        return GLOBAL
    try:
        number = arguments.member_id(process_set)
        if not tf.executing_eagerly():
            session.core.process_set_ranks(number)  # raises for an unknown id now, not when the graph runs
        return number
    except ValueError as error:
        raise _as_tensorflow_error(error) from None


def root_within(root_rank: int, process_set: ProcessSet) -> int:
    """Returns the root's rank in the set, from its rank in the job. InvalidArgumentError if it is not in the set."""
    try:
        return arguments.root_within(root_rank, process_set)
    except ValueError as error:
        raise _as_tensorflow_error(error) from None


def as_tensor(value: Any) -> Any:
    """Returns a tensor with the value of a tensor, a variable or an array."""
    if type(value) is EagerTensor or isinstance(value, tf.Tensor):
        return value
    if not hasattr(value, "read_value"):
        return tf.convert_to_tensor(value)
    # In a graph, the variable is read again, because an older value may be cached. Eagerly, `value` makes no copy.
    return value.value() if tf.executing_eagerly() and isinstance(value, tf.Variable) else value.read_value()


def with_rows(verb: str, value: Any) -> Any:
    """Returns the same as `as_tensor`. InvalidArgumentError for a scalar, which has no rows."""
    tensor = as_tensor(value)
    if tensor.shape.rank == 0:
        raise invalid_argument(f"{verb}: the tensor has no dimension 0; reshape it to one element")
    return tensor


def splits_of(splits: Any) -> Any:
    """Returns the splits of an alltoall as an int32 tensor. InvalidArgumentError unless they are whole numbers."""
    tensor = tf.convert_to_tensor(splits)
    if tensor.dtype.is_floating and tensor.shape.num_elements() == 0:
        return tf.zeros([0], tf.int32)  # an empty list is a float tensor for TensorFlow
    if not tensor.dtype.is_integer:
        raise invalid_argument(f"alltoall: splits must be whole numbers, not {tensor.dtype.name}; pass an int32 tensor")
    return tf.cast(tensor, tf.int32)
