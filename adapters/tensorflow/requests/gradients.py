"""The gradient of each collective, as further collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from perseus_like.tensor import AVERAGE, SUM

from ..rank_tensors import number
from . import Request

Gradients = list[Any]
# Executes a request on tensors, with the splits of an alltoall: `execution.run`, which itself uses this module.
Run = Callable[..., list[Any]]


def backward(run: Run, request: Request, inputs: Sequence[Any], gradients: Sequence[Any]) -> Gradients:
    """Returns the gradients of `inputs`, from the gradients of the results of `request`."""
    dense = [tf.convert_to_tensor(each) if isinstance(each, tf.IndexedSlices) else each for each in gradients]
    return RULES[request.verb](run, request, inputs, dense)


def _of_allreduce(run: Run, request: Request, inputs: Sequence[Any], gradients: Gradients) -> Gradients:
    """Reduces the gradients like the tensors: averaged for Average, summed for Sum, with the same factors."""
    if request.reduce.op != SUM.op or request.adasum:
        raise LookupError("allreduce: only Average and Sum have a gradient; use one of them, or tf.stop_gradient")
    return run(request.derived("allreduce", "backward", reduce=request.reduce), gradients)


def _of_broadcast(run: Run, request: Request, inputs: Sequence[Any], gradients: Gradients) -> Gradients:
    """Returns the average of all ranks' gradients on the root, and zeros on other ranks."""
    averaged = run(request.derived("allreduce", "backward", reduce=AVERAGE), gradients)
    is_root = tf.equal(number("rank", request.set_id), request.root)
    return [gradient * tf.cast(is_root, gradient.dtype) for gradient in averaged]


def _of_allgather(run: Run, request: Request, inputs: Sequence[Any], gradients: Gradients) -> Gradients:
    """Returns this rank's rows of the average of all ranks' gradients."""
    rows = tf.stack([tf.shape(tensor)[0] for tensor in inputs])
    counting = request.derived("allgather", "backward_rows", grouped=False)
    counts = tf.reshape(run(counting, [rows])[0], [-1, len(inputs)])
    before = tf.reduce_sum(counts[: number("rank", request.set_id)], 0)
    averaged = run(request.derived("allreduce", "backward", reduce=AVERAGE), gradients)
    return [
        tf.reshape(gradient[before[index] : before[index] + rows[index]], tf.shape(tensor))
        for index, (gradient, tensor) in enumerate(zip(averaged, inputs, strict=True))
    ]


def _of_reducescatter(run: Run, request: Request, inputs: Sequence[Any], gradients: Gradients) -> Gradients:
    """Returns all ranks' gradients, concatenated. For Sum they are multiplied by the number of ranks, as in Horovod."""
    factor = request.reduce.prescale * request.reduce.postscale

    def scaled(gradient: Any) -> Any:
        factors = tf.cast(factor, gradient.dtype)
        if not request.reduce.average:
            factors *= tf.cast(number("size", request.set_id), gradient.dtype)
        return gradient * factors

    return run(request.derived("allgather", "backward"), [scaled(gradient) for gradient in gradients])


def _of_alltoall(run: Run, request: Request, inputs: Sequence[Any], gradients: Gradients) -> Gradients:
    """Returns each row of the gradient to the rank that sent the row. Rows that were not sent have gradient zero."""
    gradient, *received = gradients
    splits = received[0] if received else tf.zeros([0], tf.int32)
    returned = run(request.derived("alltoall", "backward"), [gradient], splits)[0]
    shape = tf.shape(inputs[0])
    dropped = shape[0] - tf.shape(returned)[0]
    return [tf.concat([returned, tf.zeros(tf.concat([[dropped], shape[1:]], 0), returned.dtype)], 0)]


RULES = {
    "allreduce": _of_allreduce,
    "broadcast": _of_broadcast,
    "allgather": _of_allgather,
    "reducescatter": _of_reducescatter,
    "alltoall": _of_alltoall,
}
