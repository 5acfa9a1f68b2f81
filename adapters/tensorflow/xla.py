"""Collectives in a tf.function(jit_compile=True): custom calls, as XLA knows none of our operations.

A custom call blocks. They are kept in the order of the program by a token that each takes from the one before, so
that no two ranks wait in different ones.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from perseus_like.errors import UnavailableError
from perseus_like.session import session

from .native import library

if TYPE_CHECKING:
    from .requests import Request

# PerseusVerb of csrc/capi/perseus.h.
_VERBS = {"allreduce": 0, "adasum": 1, "broadcast": 2, "allgather": 3, "alltoall": 4, "reducescatter": 5}

_tokens: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def is_compiling() -> bool:
    """Whether nodes that are made now are for XLA."""
    try:
        from tensorflow.python.framework import ops
        from tensorflow.python.ops import control_flow_util
    except ImportError:
        return False
    return bool(control_flow_util.GraphOrParentsInXlaContext(ops.get_default_graph()))


def _start() -> None:
    problem = library.perseus_tensorflow_start_xla().decode()
    if problem:
        raise UnavailableError(
            f"collectives cannot be compiled by XLA in TensorFlow {tf.__version__}: {problem}; use jit_compile=False"
        )


def run(request: Request, tensors: list[Any], splits: Any) -> list[Any]:
    """As `requests.run`. Shapes must be known, and first dimensions equal on all ranks.

    ValueError for what has no fixed shape: an alltoall with splits.
    """
    from .autograd import backward

    _start()
    if request.verb == "alltoall" and splits is not None and splits.shape != (0,):
        raise ValueError("alltoall with splits has results of no fixed shape, which XLA cannot compile")

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def differentiable(*inputs: Any) -> Any:
        outputs = _call(request, inputs)

        def gradient(*gradients: Any) -> Any:
            return backward(request, inputs, gradients)

        return outputs, gradient

    outputs = differentiable(*tensors)
    results = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
    if request.verb == "alltoall":
        ranks = _size(request)
        results.append(tf.fill([ranks], tf.constant(tensors[0].shape[0] // ranks, tf.int32)))
    return results


def _call(request: Request, tensors: Sequence[Any]) -> list[Any]:
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    shapes = [_result_shape(request, tensor) for tensor in tensors]
    graph = tf.compat.v1.get_default_graph()
    token = _tokens.get(graph)
    if token is None:
        token = tf.zeros([], tf.float32)
    *results, new_token = gen_xla_ops.xla_custom_call_v2(
        [*tensors, token],
        call_target_name="perseus_collective",
        backend_config=_described(request, tensors, shapes, graph),
        has_side_effect=True,
        result_dtypes=[*(tensor.dtype for tensor in tensors), tf.float32],
        result_shapes=[*shapes, []],
    )
    _tokens[graph] = new_token
    return list(results)


def _described(request: Request, tensors: Sequence[Any], shapes: Sequence[list[int]], graph: Any) -> str:
    """Words for native/xla.cc; the name is the last of them."""
    from .requests import DTYPES

    verb = "adasum" if request.adasum else request.verb
    words: list[object] = [_VERBS[verb], request.set_id, request.op, int(request.average)]
    words += [repr(float(request.prescale)), repr(float(request.postscale)), request.wire, request.root, len(tensors)]
    for tensor, shape in zip(tensors, shapes, strict=True):
        extents = tensor.shape.as_list()
        bytes_ = tensor.dtype.size * tf.TensorShape(shape).num_elements()
        words += [DTYPES[tensor.dtype], bytes_, len(extents), *extents]
    name = graph.unique_name(request.name or request.verb).replace(" ", "_")
    words.append(f"{'grouped_' if request.grouped else ''}{request.verb}.{name}")
    return " ".join(map(str, words))


def _result_shape(request: Request, tensor: Any) -> list[int]:
    if not tensor.shape.is_fully_defined():
        raise ValueError(f"{request.verb} in a graph for XLA needs a tensor of known shape, not {tensor.shape}")
    shape: list[int] = tensor.shape.as_list()
    if request.verb in ("allgather", "reducescatter") and not shape:
        raise ValueError(f"{request.verb}: the tensor has no dimension 0 to divide or join; reshape it to one element")
    if request.verb == "allgather":
        return [shape[0] * _size(request), *shape[1:]]
    if request.verb == "reducescatter":
        each, more = divmod(shape[0], _size(request))
        mine = (session.core.process_set_ranks(request.set_id)).index(session.core.rank())
        return [each + (mine < more), *shape[1:]]
    return shape


def _size(request: Request) -> int:
    return len(session.core.process_set_ranks(request.set_id))
