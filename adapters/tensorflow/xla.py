"""Collectives in a tf.function(jit_compile=True): custom calls, as XLA knows none of our operations.

A custom call blocks. They are kept in the order of the program by a token that each takes from the one before, so
that no two ranks wait in different ones. Where XLA takes no custom call of ours, the function runs uncompiled.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from perseus_like.errors import UnavailableError
from perseus_like.session import session

from . import uncompiled
from .graph_notes import notes_of
from .native import library

if TYPE_CHECKING:
    from .requests import Request

logger = logging.getLogger(__name__)

# PerseusVerb of csrc/capi/perseus.h.
_VERBS = {
    verb: number
    for number, verb in enumerate(
        ["allreduce", "adasum", "broadcast", "allgather", "alltoall", "reducescatter", "barrier", "join"]
    )
}


def is_compiling() -> bool:
    """Whether nodes that are made now are for XLA, and XLA takes them."""
    return _is_in_xla_context() and _takes_collectives()


def _is_in_xla_context() -> bool:
    try:
        from tensorflow.python.framework import ops
        from tensorflow.python.ops import control_flow_util

        return bool(control_flow_util.GraphOrParentsInXlaContext(ops.get_default_graph()))
    except (ImportError, AttributeError) as error:
        _run_all_uncompiled(f"which functions XLA is to compile cannot be seen ({error})")
        return False


@functools.cache
def _takes_collectives() -> bool:
    """Found out when it is first needed: the program has told TensorFlow then which devices it wants."""
    if tf.config.get_visible_devices("GPU"):
        problem = "custom calls are for XLA's CPU devices, and there is a GPU"
    else:
        problem = library.perseus_tensorflow_start_xla().decode() or _order_problem
    if problem:
        _run_all_uncompiled(problem)
        return False
    uncompiled.is_possible()  # the gradient of a compiled function may be made outside of XLA's sight
    return True


@functools.cache
def _run_all_uncompiled(reason: str) -> None:
    if not uncompiled.is_possible():
        raise UnavailableError(
            f"collectives cannot be compiled by XLA in TensorFlow {tf.__version__}: {reason}; use jit_compile=False"
        )
    logger.warning(
        "collectives cannot be compiled by XLA in TensorFlow %s: %s. Each tf.function(jit_compile=True) that holds one "
        "runs uncompiled, and so more slowly",
        *(tf.__version__, reason),
    )


def _follow_the_program() -> str:
    """Lets calls of functions for XLA follow one another as in the program: at once they would use the same names. And
    a function within one is traced for XLA, not taken as it was traced elsewhere. Text of why that cannot be, or "".
    """
    try:
        from tensorflow.python.ops.control_flow_ops import XLAControlFlowContext
    except ImportError as error:
        return f"functions for XLA cannot be put in order ({error})"

    def add_op(_: Any, node: Any) -> None:
        if node.type == "StatefulPartitionedCall":
            notes = notes_of(node.graph)
            if "compiled_call" in notes:
                node._add_control_input(notes["compiled_call"])
            notes["compiled_call"] = node

    XLAControlFlowContext.AddOp = add_op
    XLAControlFlowContext.RequiresUniqueFunctionRetracing = lambda _: True
    return ""


_order_problem = _follow_the_program()


def run(request: Request, tensors: list[Any], splits: Any) -> list[Any]:
    """As `requests.run`. Shapes must be known, and first dimensions equal on all ranks.

    ValueError for what has no fixed shape: an alltoall with splits.
    """
    from .autograd import backward

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


def without_tensors(request: Request) -> Any:
    """A barrier or a join: an int32 scalar, with the rank that joined last."""
    return _custom_call(request, (), [tf.int32], [[]])[0]


def _call(request: Request, tensors: Sequence[Any]) -> list[Any]:
    shapes = [_result_shape(request, tensor) for tensor in tensors]
    return _custom_call(request, tensors, [tensor.dtype for tensor in tensors], shapes)[:-1]


def _custom_call(
    request: Request, tensors: Sequence[Any], dtypes: Sequence[Any], shapes: Sequence[list[int]]
) -> list[Any]:
    """The results, and the token for the next."""
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    graph = tf.compat.v1.get_default_graph()
    notes = notes_of(graph)
    token = notes.get("token")
    if token is None:
        token = tf.zeros([], tf.float32)
        # XLA leaves it out. It makes the function one with effects, whose calls are all made.
        tf.raw_ops.Assert(condition=tf.constant(True), data=[tf.constant(0)])
    results = gen_xla_ops.xla_custom_call_v2(
        [*tensors, token],
        call_target_name="perseus_collective",
        backend_config=_described(request, tensors, shapes, graph),
        has_side_effect=True,
        result_dtypes=[*dtypes, tf.float32],
        result_shapes=[*shapes, []],
    )
    notes["token"] = results[-1]
    return list(results)


def _described(request: Request, tensors: Sequence[Any], shapes: Sequence[list[int]], graph: Any) -> str:
    """Words for native/xla.cc; the name is the last of them, and after it come those of the members."""
    from .requests import DTYPES

    verb = "adasum" if request.adasum else request.verb
    ranks = session.core.process_set_ranks(request.set_id)
    words: list[object] = [_VERBS[verb], request.set_id, ranks.index(session.core.rank()), len(ranks)]
    words += [request.op, int(request.average)]
    words += [repr(float(request.prescale)), repr(float(request.postscale)), request.wire, request.root, len(tensors)]
    for tensor, shape in zip(tensors, shapes, strict=False):
        extents = tensor.shape.as_list()
        bytes_ = tensor.dtype.size * tf.TensorShape(shape).num_elements()
        words += [DTYPES[tensor.dtype], bytes_, len(extents), *extents]
    name = graph.unique_name(request.name or request.verb).replace(" ", "_")
    words.append(f"{'grouped_' if request.grouped else ''}{request.verb}.{name}")
    return " ".join(map(str, [*words, request.member_names]))


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
