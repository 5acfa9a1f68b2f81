"""Functions for XLA that hold operations it does not know: they run as they are, uncompiled."""

from __future__ import annotations

import functools
import logging
from typing import Any

from .native import OPERATIONS

logger = logging.getLogger(__name__)

# Of a tf.function(jit_compile=True). It is called as one piece, too, where others become part of their caller.
_ATTRIBUTES = ("_XlaMustCompile", "_noinline")


@functools.cache
def is_possible() -> bool:
    """Lets functions that hold our operations run uncompiled, from the first call on. False: not in this TensorFlow."""
    try:
        from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction

        made = ConcreteFunction.from_func_graph
    except (ImportError, AttributeError):
        return False

    @functools.wraps(made)
    def from_func_graph(graph: Any, function_type: Any, attrs: Any, *more: Any, **others: Any) -> Any:
        if attrs and attrs.get(_ATTRIBUTES[0]) and _holds_ours(graph):
            attrs = {name: value for name, value in attrs.items() if name not in _ATTRIBUTES}
        return made(graph, function_type, attrs, *more, **others)

    ConcreteFunction.from_func_graph = from_func_graph
    return True


def _holds_ours(graph: Any) -> bool:
    """Also within the functions that it calls."""
    if any(node.type in OPERATIONS for node in graph.get_operations()):
        return True
    called = graph.as_graph_def().library.function
    return any(node.op in OPERATIONS for function in called for node in function.node_def)
