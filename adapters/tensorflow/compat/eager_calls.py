"""Eager calls of operations, and the classes of eager tensors and variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def _load() -> tuple[Any, ...] | None:
    try:
        from tensorflow.python import pywrap_tfe
        from tensorflow.python.eager import context, core

        errors = (core._NotOkStatusException, core._FallbackException, core._status_to_exception)
        return (pywrap_tfe.TFE_Py_FastPathExecute, context.context, *errors)
    except (ImportError, AttributeError):
        return None


_parts = _load()


def execute(
    operation: str,
    inputs: Sequence[Any],
    attributes: Sequence[Any],
    error_of: Callable[[str], BaseException | None],
    by_wrapper: Callable[[], list[Any]],
) -> list[Any]:
    """Runs an operation eagerly by one call into TensorFlow. Returns its outputs.

    `attributes` are names and values in turn. `error_of` turns an error text into an exception, or returns None for
    TensorFlow's. `by_wrapper` runs the operation by the function that TensorFlow has generated for it, which takes
    inputs of any kind.

    Relies on: `pywrap_tfe.TFE_Py_FastPathExecute(context, operation, name, *inputs, *attributes)`, `context.context()`,
    and `core._NotOkStatusException`, `core._FallbackException` and `core._status_to_exception`.
    Tried with: all.
    Notices: importing a module fails, or a function or class is missing.
    Lost then: `by_wrapper` runs the operation, and an eager collective takes longer.
    """
    if _parts is None:
        return by_wrapper()
    call, context, not_ok, fallback, exception_of = _parts
    try:
        results: list[Any] = call(context(), operation, None, *inputs, *attributes)
        return results
    except not_ok as status:
        raise error_of(status.message) or exception_of(status) from None
    except fallback:
        return by_wrapper()


def is_fast() -> bool:
    """Returns whether `execute` can make one call into TensorFlow.

    Relies on: the same parts as `execute`.
    Tried with: all.
    Notices: see `execute`.
    Lost then: see `execute`.
    """
    return _parts is not None


def eager_tensor_class() -> type:
    """Returns the class of all eager tensors. To compare a type with it is faster than `isinstance(…, tf.Tensor)`.

    Relies on: `tf.__internal__.EagerTensor`, which has no subclass.
    Tried with: all.
    Notices: the name is missing; then it returns a class without objects.
    Lost then: eager collectives take longer.
    """
    internal = getattr(tf, "__internal__", None)
    found: type = getattr(internal, "EagerTensor", None) or type("NoEagerTensor", (), {})
    return found


def resource_variable_class() -> type:
    """Returns the class of most variables, whose `handle` the public operations on resources take.

    Relies on: `resource_variable_ops.ResourceVariable`.
    Tried with: all.
    Notices: importing it fails; then it returns a class without objects.
    Lost then: eager broadcasts of variables take longer.
    """
    try:
        from tensorflow.python.ops.resource_variable_ops import ResourceVariable
    except ImportError:
        return type("NoResourceVariable", (), {})
    found: type = ResourceVariable
    return found
