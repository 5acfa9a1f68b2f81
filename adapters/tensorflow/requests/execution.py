"""Executes requests: eagerly, as a node of a graph, or as a custom call in a graph that XLA compiles."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ..compat import graphs
from ..errors import invalid_argument
from ..native import asynchronous
from . import DTYPES, Request, eager, xla
from .gradients import backward


def run(request: Request, tensors: Sequence[Any], splits: Any = None) -> list[Any]:
    """Returns the results of a request; for an alltoall, also the number of rows from each rank.

    An eager call is complete on return, and its errors have the classes of errors.py. In a graph, this adds a node.
    """
    if tf.executing_eagerly():
        return _run_eagerly(request, tensors, splits)
    if any(map(is_complex, tensors)):
        return _run_by_parts(request, tensors, splits)
    _check_dtypes(request, tensors)
    if xla.is_compiling():
        return xla.run(request, list(tensors), splits, functools.partial(backward, run, request))
    name = request.name or str(tensors[0].name).removesuffix(":0")
    # TensorFlow does not allow other characters in node names. A slash would open a scope.
    node_name = re.sub(r"[^A-Za-z0-9_.\-]", "_", f"{request.verb}_{name}")
    with in_order():
        attributes = request.attributes(name if request.whole_name else "")
        results = eager.execute_by_wrapper(request.verb, _inputs(tensors, splits), {**attributes, "name": node_name})
        last_in_order(results[0].op)
    return results


def _inputs(tensors: Sequence[Any], splits: Any) -> tuple[Any, ...]:
    return (tensors,) if splits is None else (tensors[0], splits)


def in_order() -> Any:
    """Returns a context whose nodes run after earlier collectives if TensorFlow cannot run several at once."""
    last = None if asynchronous() else graphs.state_of(tf.compat.v1.get_default_graph()).get("last_collective")
    return contextlib.nullcontext() if last is None else tf.control_dependencies([last])


def last_in_order(node: Any) -> None:
    """Makes the nodes of the next `in_order` run after this one."""
    if not asynchronous():
        graphs.state_of(tf.compat.v1.get_default_graph())["last_collective"] = node


def _run_eagerly(request: Request, tensors: Sequence[Any], splits: Any) -> list[Any]:
    try:
        return eager.execute(request.verb, _inputs(tensors, splits), request.eager_attributes)
    except Exception:
        if any(map(is_complex, tensors)):
            return _run_by_parts(request, tensors, splits)
        _check_dtypes(request, tensors)  # its text is better than that of TensorFlow's own error
        raise


def is_complex(tensor: Any) -> bool:
    return bool(tensor.dtype.base_dtype.is_complex)


def _run_by_parts(request: Request, tensors: Sequence[Any], splits: Any) -> list[Any]:
    """Runs a request with the real and imaginary parts of complex tensors, as a last dimension of 2."""
    are_complex = [is_complex(tensor) for tensor in tensors]
    parts = [
        tf.stack([tf.math.real(each), tf.math.imag(each)], -1) if has_parts else each
        for each, has_parts in zip(tensors, are_complex, strict=True)
    ]
    results = list(run(request, parts, splits))
    for number, has_parts in enumerate(are_complex):
        if has_parts:
            results[number] = tf.complex(results[number][..., 0], results[number][..., 1])
    return results


def _check_dtypes(request: Request, tensors: Sequence[Any]) -> None:
    for tensor in tensors:
        if tensor.dtype not in DTYPES and tensor.dtype.base_dtype not in DTYPES:
            names = ", ".join(dtype.name for dtype in DTYPES)
            raise invalid_argument(f"{request.verb}: {tensor.dtype.name} tensors cannot be communicated; {names} can")
