"""What a node asks of the other ranks, and the node itself: eagerly, in a graph, or in a graph that XLA compiles."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from perseus_like.tensor import AS_IT_IS

from . import xla
from .errors import invalid_argument, translated
from .graph_notes import notes_of
from .native import asynchronous, operations

DTYPES = {
    dtype: number
    for number, dtype in enumerate(
        [
            *(tf.uint8, tf.int8, tf.int16, tf.int32, tf.int64),
            *(tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.bool, tf.uint16),
        ]
    )
}

VERBS = ("allreduce", "broadcast", "allgather", "reducescatter", "alltoall")


@dataclass(frozen=True)
class Request:
    """Everything but the tensors; the attributes of a node."""

    verb: str
    name: str | None = None
    set_id: int = 0
    grouped: bool = False
    op: int = 0  # the core's number
    average: bool = False
    adasum: bool = False
    prescale: float = 1.0
    postscale: float = 1.0
    wire: int = AS_IT_IS
    root: int = 0  # within the set
    whole_name: bool = False  # the name as it is, without the scopes around it
    member_names: str = ""  # of an allreduce: what texts of errors call the tensors, a line each

    def derived(self, verb: str, suffix: str, **changes: Any) -> Request:
        """Another verb of the same set, under a name that follows from this one's."""
        name = f"{self.name or self.verb}_{suffix}"
        return replace(Request(verb, name, self.set_id, self.grouped, whole_name=self.whole_name), **changes)


def run(request: Request, tensors: Sequence[Any], splits: Any = None) -> list[Any]:
    """The tensors that come of it; for an alltoall, also the rows from each rank.

    Eagerly, complete on return, and errors are of our classes. In a graph, a node.
    """
    _check_dtypes(request, tensors)
    if tf.executing_eagerly():
        return _run_eagerly(request, tensors, splits)
    if xla.is_compiling():
        return xla.run(request, list(tensors), splits)
    name = request.name or _name_after(tensors[0])
    node_name = _node_name(f"{request.verb}_{name}")
    with in_order():
        results = _node(request, tensors, splits, name if request.whole_name else "", node_name, wait=False)
        last_in_order(results[0].op)
    return results


def in_order() -> Any:
    """For the nodes made within: after those before, where TensorFlow cannot have several under way."""
    last = None if asynchronous() else notes_of(tf.compat.v1.get_default_graph()).get("last_collective")
    return contextlib.nullcontext() if last is None else tf.control_dependencies([last])


def last_in_order(node: Any) -> None:
    if not asynchronous():
        notes_of(tf.compat.v1.get_default_graph())["last_collective"] = node


def _run_eagerly(request: Request, tensors: Sequence[Any], splits: Any) -> list[Any]:
    try:
        # Blocking calls are one after the other: they can all have the same name.
        return _node(request, tensors, splits, request.name or "eager", None, wait=True)
    except tf.errors.OpError as error:
        ours = translated(error)
        if ours is None:
            raise
        raise ours from None


def _node(
    request: Request, tensors: Sequence[Any], splits: Any, tensor_name: str, node_name: str | None, wait: bool
) -> list[Any]:
    common = {
        "tensor_name": tensor_name,
        "grouped": request.grouped,
        "process_set_id": request.set_id,
        "wait": wait,
        "name": node_name,
    }
    scaling = {
        "reduce_op": request.op,
        "average": request.average,
        "prescale_factor": repr(float(request.prescale)),
        "postscale_factor": repr(float(request.postscale)),
    }
    if request.verb == "allreduce":
        return list(
            operations.perseus_allreduce(
                tensors,
                adasum=request.adasum,
                wire_dtype=request.wire,
                member_names=request.member_names,
                **scaling,
                **common,
            )
        )
    if request.verb == "broadcast":
        return list(operations.perseus_broadcast(tensors, root=request.root, **common))
    if request.verb == "allgather":
        return list(operations.perseus_allgather(tensors, **common))
    if request.verb == "reducescatter":
        return list(operations.perseus_reduce_scatter(tensors, **scaling, **common))
    return list(operations.perseus_alltoall(tensors[0], splits, **common))


def _check_dtypes(request: Request, tensors: Sequence[Any]) -> None:
    for tensor in tensors:
        if tensor.dtype not in DTYPES and tensor.dtype.base_dtype not in DTYPES:
            names = ", ".join(dtype.name for dtype in DTYPES)
            raise invalid_argument(f"{request.verb}: {tensor.dtype.name} tensors cannot be communicated; {names} can")


def _name_after(tensor: Any) -> str:
    """What the tensor is called in its graph."""
    return str(tensor.name).removesuffix(":0")


def _node_name(text: str) -> str:
    """As TensorFlow allows it: letters, digits and a few marks, no slash that would open a scope."""
    return re.sub(r"[^A-Za-z0-9_.\-]", "_", text)
