"""TensorFlow's variables, and those of Keras 3, which hold one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf


def plain(variable: Any) -> Any:
    """The TensorFlow variable behind one of Keras 3; others as they are."""
    inner = getattr(variable, "value", None)
    return inner if isinstance(inner, tf.Variable) else variable


def key_of(variable: Any) -> Any:
    """What tells a variable or tensor from others; hashable."""
    inner = plain(variable)
    return inner.ref() if hasattr(inner, "ref") else id(inner)


def vars_to_refs(vars: Any) -> Any:
    """Hashable references, in the same nesting of lists and tuples."""
    if isinstance(vars, list | tuple):
        return tuple(vars_to_refs(each) for each in vars)
    return plain(vars).ref()


def refs_to_vars(refs: Any) -> Any:
    """The variables again."""
    if isinstance(refs, list | tuple):
        return [refs_to_vars(each) for each in refs]
    return refs.deref()


def bytes_of(variables: Iterable[Any]) -> int:
    """Of those whose shape is known."""
    return sum(
        (tf.TensorShape(each.shape).num_elements() or 0) * tf.as_dtype(each.dtype).base_dtype.size for each in variables
    )
