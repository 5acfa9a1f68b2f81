"""What a node asks of the other ranks, and the node itself: eagerly, in a graph, or in a graph that XLA compiles."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from perseus_like.tables import DType
from perseus_like.tensor import SUM, ReduceOptions

from . import eager, xla
from .compat import graphs
from .errors import invalid_argument
from .native import asynchronous

DTYPES = {tf.as_dtype("bool" if dtype is DType.boolean else dtype.name): int(dtype) for dtype in DType}


@dataclass(frozen=True)
class Request:
    """Everything but the tensors; the attributes of a node."""

    verb: str
    name: str | None = None
    set_id: int = 0
    grouped: bool = False
    reduce: ReduceOptions = SUM
    adasum: bool = False
    root: int = 0  # within the set
    whole_name: bool = False  # the name as it is, without the scopes around it
    member_names: str = ""  # of an allreduce: what texts of errors call the tensors, a line each

    def attributes(self, tensor_name: str) -> dict[str, Any]:
        """The attributes of the verb's operation."""
        own: dict[str, Any] = {"tensor_name": tensor_name, "grouped": self.grouped, "process_set_id": self.set_id}
        op, average, prescale, postscale, wire_dtype = self.reduce
        if self.verb in ("allreduce", "reducescatter"):
            own |= {"reduce_op": op, "average": average}
            own |= {"prescale_factor": repr(float(prescale)), "postscale_factor": repr(float(postscale))}
        if self.verb == "allreduce":
            own |= {"adasum": self.adasum, "wire_dtype": wire_dtype, "member_names": self.member_names}
        if self.verb == "broadcast":
            own["root"] = self.root
        return own

    @functools.cached_property
    def eager_attributes(self) -> tuple[Any, ...]:
        """The attributes of an eager call, names and values in turn."""
        # Blocking calls are one after the other: they can all have the same name.
        return eager.given({**self.attributes(self.name or "eager"), "wait": True})

    def derived(self, verb: str, suffix: str, **changes: Any) -> Request:
        """Another verb of the same set, under a name that follows from this one's."""
        name = f"{self.name or self.verb}_{suffix}"
        return replace(Request(verb, name, self.set_id, self.grouped, whole_name=self.whole_name), **changes)


# Requests of verbs that are called again and again are made once.
request_of = functools.lru_cache(maxsize=1024, typed=True)(Request)


def run(request: Request, tensors: Sequence[Any], splits: Any = None) -> list[Any]:
    """The tensors that come of it; for an alltoall, also the rows from each rank.

    Eagerly, complete on return, and errors are of our classes. In a graph, a node.
    """
    if tf.executing_eagerly():
        return _run_eagerly(request, tensors, splits)
    _check_dtypes(request, tensors)
    if xla.is_compiling():
        return xla.run(request, list(tensors), splits)
    name = request.name or _name_after(tensors[0])
    node_name = _node_name(f"{request.verb}_{name}")
    with in_order():
        attributes = request.attributes(name if request.whole_name else "")
        results = eager.execute_by_wrapper(request.verb, _inputs(tensors, splits), {**attributes, "name": node_name})
        last_in_order(results[0].op)
    return results


def _inputs(tensors: Sequence[Any], splits: Any) -> tuple[Any, ...]:
    return (tensors,) if splits is None else (tensors[0], splits)


def in_order() -> Any:
    """For the nodes made within: after those before, where TensorFlow cannot have several under way."""
    last = None if asynchronous() else graphs.state_of(tf.compat.v1.get_default_graph()).get("last_collective")
    return contextlib.nullcontext() if last is None else tf.control_dependencies([last])


def last_in_order(node: Any) -> None:
    if not asynchronous():
        graphs.state_of(tf.compat.v1.get_default_graph())["last_collective"] = node


def _run_eagerly(request: Request, tensors: Sequence[Any], splits: Any) -> list[Any]:
    try:
        return eager.execute(request.verb, _inputs(tensors, splits), request.eager_attributes)
    except Exception:
        _check_dtypes(request, tensors)  # says more than TensorFlow's own error of such a dtype
        raise


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
