"""Variables of TensorFlow, and of Keras 3, which contain one of TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from .compat import eager_calls

ResourceVariable: Any = eager_calls.resource_variable_class()


def plain(variable: Any) -> Any:
    """Returns the TensorFlow variable in a variable of Keras 3; any other variable itself."""
    if type(variable) is ResourceVariable:
        return variable
    inner = getattr(variable, "value", None)
    return inner if isinstance(inner, tf.Variable) else variable


def value_of(variable: Any) -> Any:
    """Returns the current value of a TensorFlow variable, eagerly without a copy. Gradient tapes do not record it."""
    if not tf.executing_eagerly():
        return variable.read_value()  # an older value may be cached
    if type(variable) is ResourceVariable:
        return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
    return variable.value() if isinstance(variable, tf.Variable) else variable.read_value()


def assign(variable: Any, value: Any) -> Any:
    """Assigns a tensor of the variable's shape and dtype; in a graph, returns the operation that does."""
    if tf.executing_eagerly() and type(variable) is ResourceVariable:
        return tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)
    return variable.assign(value, read_value=False)


def key_of(variable: Any) -> Any:
    """Returns a hashable key that identifies a variable or tensor."""
    inner = plain(variable)
    return inner.ref() if hasattr(inner, "ref") else id(inner)


def vars_to_refs(vars: Any) -> Any:
    """Returns references of variables, which are hashable, in tuples of the same structure.

    Args:
        vars: a variable, or lists and tuples of variables.

    Returns:
        A reference, or tuples of references.

    Examples:
        >>> references = hvd.vars_to_refs([tf.Variable([1.0])])
        >>> len({references})
        1
    """
    if isinstance(vars, list | tuple):
        return tuple(vars_to_refs(each) for each in vars)
    return plain(vars).ref()


def refs_to_vars(refs: Any) -> Any:
    """Returns the variables of `vars_to_refs`.

    Args:
        refs: a reference, or lists and tuples of references.

    Returns:
        The variable, or lists of variables of the same structure.

    Examples:
        >>> weights = tf.Variable([1.0])
        >>> hvd.refs_to_vars(hvd.vars_to_refs([weights]))[0] is weights
        True
    """
    if isinstance(refs, list | tuple):
        return [refs_to_vars(each) for each in refs]
    return refs.deref()


def bytes_of(variables: Iterable[Any]) -> int:
    """Returns the size of the variables whose shape is known."""
    return sum(
        (tf.TensorShape(each.shape).num_elements() or 0) * tf.as_dtype(each.dtype).base_dtype.size for each in variables
    )
