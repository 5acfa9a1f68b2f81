"""Registers the gradients of the collectives' operations with TensorFlow."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import tensorflow as tf

from perseus_like.tables import REDUCING
from perseus_like.tensor import ReduceOptions

from ..native import VERBS, operation_of
from . import Request
from .eager import DEFAULTS
from .execution import run
from .gradients import RULES, Gradients, backward


def _attribute(node: Any, name: str) -> Any:
    """Returns the attribute of a node, or of an eager call that a tape has recorded without defaults."""
    try:
        return node.get_attr(name)
    except KeyError:
        return DEFAULTS[name]


def _request_of(node: Any, verb: str) -> Request:
    name = _attribute(node, "tensor_name")
    given = name.decode() if isinstance(name, bytes) else str(name)
    request = Request(
        verb,
        given or node.outputs[0].op.name.rpartition("/")[2].removeprefix(f"{verb}_"),
        _attribute(node, "process_set_id"),
        bool(_attribute(node, "grouped")),
        whole_name=bool(given),
    )
    extra: dict[str, Any] = {}
    if VERBS[verb] in REDUCING:
        factors = (float(_attribute(node, "prescale_factor")), float(_attribute(node, "postscale_factor")))
        extra["reduce"] = ReduceOptions(_attribute(node, "reduce_op"), bool(_attribute(node, "average")), *factors)
    if verb == "allreduce":
        extra["adasum"] = bool(_attribute(node, "adasum"))
        extra["reduce"] = extra["reduce"]._replace(wire_dtype=_attribute(node, "wire_dtype"))
    if verb == "broadcast":
        extra["root"] = _attribute(node, "root")
    return replace(request, **extra)


def _gradient(verb: str, node: Any, *gradients: Any) -> Gradients:
    return backward(run, _request_of(node, verb), node.inputs, gradients)


def _gradient_of_alltoall(node: Any, gradient: Any, _: Any) -> Gradients:
    return [*backward(run, _request_of(node, "alltoall"), node.inputs[:1], [gradient, node.outputs[1]]), None]


for verb in RULES:
    tf.RegisterGradient(operation_of(verb))(_gradient_of_alltoall if verb == "alltoall" else partial(_gradient, verb))
for operation in ("PerseusBarrier", "PerseusJoin", "PerseusNumber"):
    tf.no_gradient(operation)
