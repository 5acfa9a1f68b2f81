"""Calls of the operations of collectives: eagerly by one call into TensorFlow, in graphs by TensorFlow's wrappers.

The wrappers pass every attribute. TensorFlow hashes the attributes of each call, so an eager call passes only those
that differ from their defaults.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from perseus_like.tensor import AS_IT_IS

from ..compat import eager_calls
from ..errors import translated, translated_text
from ..native import VERBS, operation_of, operations

# The defaults of the operations' attributes (native/operations.cc), which a gradient tape does not record.
DEFAULTS: dict[str, Any] = {
    "tensor_name": "",
    "grouped": False,
    "process_set_id": 0,
    "wait": False,
    "reduce_op": 0,
    "average": False,
    "prescale_factor": "1.0",
    "postscale_factor": "1.0",
    "adasum": False,
    "wire_dtype": AS_IT_IS,
    "member_names": "",
    "root": 0,
}


def given(attributes: dict[str, Any]) -> tuple[Any, ...]:
    """Returns the names and values, in turn, of the attributes that differ from their defaults."""
    return tuple(each for pair in attributes.items() if DEFAULTS[pair[0]] != pair[1] for each in pair)


def execute(verb: str, inputs: Sequence[Any], attributes: tuple[Any, ...]) -> list[Any]:
    """Returns the outputs of a collective's operation, when it is complete.

    `attributes` are names and values in turn. Errors of collectives are of the classes in errors.py.
    """

    def by_wrapper() -> list[Any]:
        try:
            return execute_by_wrapper(verb, inputs, dict(zip(attributes[::2], attributes[1::2], strict=True)))
        except tf.errors.OpError as error:
            raise translated(error) or error from None

    return eager_calls.execute(operation_of(verb), inputs, attributes, translated_text, by_wrapper)


def execute_by_wrapper(verb: str, inputs: Sequence[Any], attributes: dict[str, Any]) -> list[Any]:
    """Adds or runs a collective's operation by the wrapper that TensorFlow has generated. Inputs may be of any kind."""
    wrapper = getattr(operations, f"perseus_{VERBS[verb].name}")
    return list(wrapper(*inputs, **attributes))
