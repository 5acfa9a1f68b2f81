"""Gradients of the collectives: what each verb sends back when a loss is differentiated through it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from .numbers import number
from .requests import Request, run

Gradients = list[Any]


def backward(request: Request, inputs: Sequence[Any], gradients: Sequence[Any]) -> Gradients:
    """The gradients of `inputs`, from those of what `request` gave."""
    dense = [_dense(gradient) for gradient in gradients]
    return _RULES[request.verb](request, inputs, dense)


def _dense(gradient: Any) -> Any:
    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient


def _of_allreduce(request: Request, inputs: Sequence[Any], gradients: Gradients) -> Gradients:
    """Reduced like the tensor: averaged for Average, summed for Sum, with the same factors."""
    if request.op != 0 or request.adasum:
        raise LookupError("an allreduce has a gradient for Average and Sum only")
    same = {name: getattr(request, name) for name in ("average", "prescale", "postscale", "wire")}
    return run(request.derived("allreduce", "backward", **same), gradients)


def _of_broadcast(request: Request, inputs: Sequence[Any], gradients: Gradients) -> Gradients:
    """The average of all ranks' on the root, zero elsewhere."""
    averaged = run(request.derived("allreduce", "backward", average=True), gradients)
    is_root = tf.equal(number("rank", request.set_id), request.root)
    return [gradient * tf.cast(is_root, gradient.dtype) for gradient in averaged]


def _of_allgather(request: Request, inputs: Sequence[Any], gradients: Gradients) -> Gradients:
    """The average of all ranks', of which each rank takes its own rows."""
    rows = tf.stack([tf.shape(tensor)[0] for tensor in inputs])
    counting = request.derived("allgather", "backward_rows", grouped=False)
    counts = tf.reshape(run(counting, [rows])[0], [-1, len(inputs)])
    before = tf.reduce_sum(counts[: number("rank", request.set_id)], 0)
    averaged = run(request.derived("allreduce", "backward", average=True), gradients)
    return [
        tf.reshape(gradient[before[place] : before[place] + rows[place]], tf.shape(tensor))
        for place, (gradient, tensor) in enumerate(zip(averaged, inputs, strict=True))
    ]


def _of_reducescatter(request: Request, inputs: Sequence[Any], gradients: Gradients) -> Gradients:
    """The ranks' gradients put together again; for Sum times the number of ranks, as Horovod has it."""
    factor = request.prescale * request.postscale

    def scaled(gradient: Any) -> Any:
        factors = tf.cast(factor, gradient.dtype)
        if not request.average:
            factors *= tf.cast(number("size", request.set_id), gradient.dtype)
        return gradient * factors

    return run(request.derived("allgather", "backward"), [scaled(gradient) for gradient in gradients])


def _of_alltoall(request: Request, inputs: Sequence[Any], gradients: Gradients) -> Gradients:
    """Each row goes back to the rank that sent it; rows that were not sent have no gradient."""
    gradient, *received = gradients
    splits = received[0] if received else tf.zeros([0], tf.int32)
    returned = run(request.derived("alltoall", "backward"), [gradient], splits)[0]
    shape = tf.shape(inputs[0])
    dropped = shape[0] - tf.shape(returned)[0]
    return [tf.concat([returned, tf.zeros(tf.concat([[dropped], shape[1:]], 0), returned.dtype)], 0)]


_RULES = {
    "allreduce": _of_allreduce,
    "broadcast": _of_broadcast,
    "allgather": _of_allgather,
    "reducescatter": _of_reducescatter,
    "alltoall": _of_alltoall,
}


def _request_of(node: Any, verb: str) -> Request:
    name = node.get_attr("tensor_name")
    given = name.decode() if isinstance(name, bytes) else str(name)
    request = Request(
        verb,
        given or node.outputs[0].op.name.rpartition("/")[2].removeprefix(f"{verb}_"),
        node.get_attr("process_set_id"),
        bool(node.get_attr("grouped")),
        whole_name=bool(given),
    )
    extra: dict[str, Any] = {}
    if verb in ("allreduce", "reducescatter"):
        extra["op"] = node.get_attr("reduce_op")
        extra["average"] = bool(node.get_attr("average"))
        extra["prescale"] = float(node.get_attr("prescale_factor"))
        extra["postscale"] = float(node.get_attr("postscale_factor"))
    if verb == "allreduce":
        extra["adasum"] = bool(node.get_attr("adasum"))
        extra["wire"] = node.get_attr("wire_dtype")
    if verb == "broadcast":
        extra["root"] = node.get_attr("root")
    return Request(**{**vars(request), **extra})


def _gradient(verb: str, node: Any, *gradients: Any) -> Gradients:
    return backward(_request_of(node, verb), node.inputs, gradients)


def _gradient_of_alltoall(node: Any, gradient: Any, _: Any) -> Gradients:
    return [*backward(_request_of(node, "alltoall"), node.inputs[:1], [gradient, node.outputs[1]]), None]


tf.RegisterGradient("PerseusAllreduce")(partial(_gradient, "allreduce"))
tf.RegisterGradient("PerseusBroadcast")(partial(_gradient, "broadcast"))
tf.RegisterGradient("PerseusAllgather")(partial(_gradient, "allgather"))
tf.RegisterGradient("PerseusReduceScatter")(partial(_gradient, "reducescatter"))
tf.RegisterGradient("PerseusAlltoall")(_gradient_of_alltoall)
for operation in ("PerseusBarrier", "PerseusJoin", "PerseusNumber"):
    tf.no_gradient(operation)
