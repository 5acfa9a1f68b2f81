"""Collectives in a tf.function(jit_compile=True), as custom calls of XLA.

XLA cannot compile the operations of this adapter. A custom call blocks until its collective is done. Each custom call
takes a token from the one before, which keeps them in the order of the program, so that all ranks wait in the same
collective. If XLA cannot make custom calls, the function runs uncompiled.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from perseus_like.errors import UnavailableError
from perseus_like.session import session
from perseus_like.tables import Verb

from ..compat import compiled_functions, graphs
from ..native import OPERATIONS, VERBS, library
from ..tensorflow_setup import prepare_tensorflow
from . import DTYPES, Request

logger = logging.getLogger(__name__)


def is_compiling() -> bool:
    """Returns whether XLA will compile the nodes that are added now, and can compile collectives."""
    return _is_for_xla() and _takes_collectives()


def _is_for_xla() -> bool:
    try:
        return compiled_functions.is_for_xla(tf.compat.v1.get_default_graph())
    except (ImportError, AttributeError) as error:
        _run_all_uncompiled(f"it cannot be seen which functions XLA will compile ({error})")
        return False


@functools.cache
def _takes_collectives() -> bool:
    """Returns whether XLA can compile collectives. The program must have chosen its devices before the first call."""
    problem = _problem()
    if problem:
        _run_all_uncompiled(problem)
        return False
    _can_run_uncompiled()  # TensorFlow may trace the gradient of a compiled function outside of an XLA context
    return True


def _problem() -> str:
    if tf.config.get_visible_devices("GPU"):
        return "custom calls are for XLA's CPU devices, and there is a GPU"
    try:
        compiled_functions.custom_call_operation()
    except (ImportError, AttributeError) as error:
        return f"custom calls cannot be made ({error})"
    return library.perseus_tensorflow_start_xla().decode() or prepare_tensorflow()


@functools.cache
def _run_all_uncompiled(reason: str) -> None:
    if not _can_run_uncompiled():
        raise UnavailableError(
            f"collectives cannot be compiled by XLA in TensorFlow {tf.__version__}: {reason}; use jit_compile=False"
        )
    logger.warning(
        "collectives cannot be compiled by XLA in TensorFlow %s: %s. Each tf.function(jit_compile=True) that contains "
        "a collective runs uncompiled, which is slower",
        *(tf.__version__, reason),
    )


def _can_run_uncompiled() -> bool:
    try:
        compiled_functions.run_uncompiled(_contains_operations)
    except (ImportError, AttributeError):
        return False
    return True


def _contains_operations(graph: Any) -> bool:
    """Returns whether a graph, or a function that it calls, contains operations of this adapter."""
    if any(node.type in OPERATIONS for node in graph.get_operations()):
        return True
    called = graph.as_graph_def().library.function
    return any(node.op in OPERATIONS for function in called for node in function.node_def)


def run(
    request: Request, tensors: list[Any], splits: Any, backward: Callable[[Sequence[Any], Sequence[Any]], list[Any]]
) -> list[Any]:
    """Does the same as `execution.run`. Shapes must be known, and first dimensions equal on all ranks.

    `backward` returns the gradients of its first argument, the inputs, from those of the results. Raises ValueError for
    an alltoall with splits, whose results have no fixed shape.
    """
    if request.verb == "alltoall" and splits is not None and splits.shape != (0,):
        raise ValueError("alltoall with splits has results of no fixed shape, which XLA cannot compile")

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def differentiable(*inputs: Any) -> Any:
        dtypes, shapes = [each.dtype for each in inputs], [_result_shape(request, each) for each in inputs]
        outputs = _custom_call(request, inputs, dtypes, shapes)[:-1]

        def gradient(*gradients: Any) -> Any:
            return backward(inputs, gradients)

        return outputs, gradient

    outputs = differentiable(*tensors)
    results = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
    if request.verb == "alltoall":
        ranks = _size(request)
        results.append(tf.fill([ranks], tf.constant(tensors[0].shape[0] // ranks, tf.int32)))
    return results


def without_tensors(request: Request) -> Any:
    """Adds a barrier or a join. Returns an int32 scalar; for a join, the rank that joined last."""
    return _custom_call(request, (), [tf.int32], [[]])[0]


def _custom_call(
    request: Request, tensors: Sequence[Any], dtypes: Sequence[Any], shapes: Sequence[list[int]]
) -> list[Any]:
    """Adds a custom call. Returns its results, and the token for the next call."""
    graph = tf.compat.v1.get_default_graph()
    state = graphs.state_of(graph)
    token = state.get("token")
    if token is None:
        token = tf.zeros([], tf.float32)
        compiled_functions.keep_all_calls()
    results = compiled_functions.custom_call_operation()(
        [*tensors, token],
        call_target_name="perseus_collective",
        backend_config=_described(request, tensors, shapes, graph),
        has_side_effect=True,
        result_dtypes=[*dtypes, tf.float32],
        result_shapes=[*shapes, []],
    )
    state["token"] = results[-1]
    return list(results)


def _described(request: Request, tensors: Sequence[Any], shapes: Sequence[list[int]], graph: Any) -> str:
    """Returns the request as words for native/xla.cc. The name is the last word, and the member names follow it."""
    ranks = session.core.process_set_ranks(request.set_id)
    verb = Verb.adasum if request.adasum else VERBS[request.verb]
    words: list[object] = [int(verb), request.set_id, ranks.index(session.core.rank()), len(ranks)]
    op, average, prescale, postscale, wire_dtype = request.reduce
    words += [op, int(average), repr(float(prescale)), repr(float(postscale)), wire_dtype, request.root, len(tensors)]
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
