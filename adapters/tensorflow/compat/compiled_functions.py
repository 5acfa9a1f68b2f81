"""Functions that XLA compiles: `tf.function(jit_compile=True)`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

# Attributes of a function that XLA compiles. It is also called as one piece, and not inlined into its caller.
_ATTRIBUTES = ("_XlaMustCompile", "_noinline")


def is_for_xla(graph: Any) -> bool:
    """Returns whether XLA will compile the graph.

    Relies on: `control_flow_util.GraphOrParentsInXlaContext(graph)`.
    Tried with: all.
    Notices: importing or calling fails: ImportError or AttributeError.
    Lost then: functions that contain collectives run uncompiled. The log says so.
    """
    from tensorflow.python.ops import control_flow_util

    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


@functools.cache
def keep_call_order(last_call_of: Callable[[Any, Any], Any]) -> None:
    """Runs the calls of functions within a compiled function in the order of the program.

    Called functions also are traced anew for XLA, even if they were traced for TensorFlow's own runtime before.
    `last_call_of(graph, call)` remembers the call of a function, and returns the call before, or None.

    Relies on: `XLAControlFlowContext.AddOp`, which is called with each node of a graph for XLA and does nothing;
    `XLAControlFlowContext.RequiresUniqueFunctionRetracing`, which returns False; and `Operation._add_control_input`.
    Tried with: all.
    Notices: importing the class fails, or it lacks a method: ImportError or AttributeError.
    Lost then: functions that contain collectives run uncompiled. The log says so.
    """
    from tensorflow.python.framework.ops import Operation
    from tensorflow.python.ops.control_flow_ops import XLAControlFlowContext

    original = XLAControlFlowContext.AddOp
    add_control_input = Operation._add_control_input
    if not hasattr(XLAControlFlowContext, "RequiresUniqueFunctionRetracing"):
        raise AttributeError("XLAControlFlowContext has no RequiresUniqueFunctionRetracing")

    def add_op(self: Any, node: Any) -> None:
        original(self, node)
        if node.type == "StatefulPartitionedCall":
            before = last_call_of(node.graph, node)
            if before is not None:
                add_control_input(node, before)

    XLAControlFlowContext.AddOp = add_op
    XLAControlFlowContext.RequiresUniqueFunctionRetracing = lambda _: True


def custom_call_operation() -> Callable[..., Sequence[Any]]:
    """Returns the function that adds a call of a native function to a graph for XLA.

    Relies on: `gen_xla_ops.xla_custom_call_v2(operands, call_target_name, backend_config, has_side_effect,
    result_dtypes, result_shapes)`.
    Tried with: all.
    Notices: importing the module fails, or it lacks the function: ImportError or AttributeError.
    Lost then: functions that contain collectives run uncompiled. The log says so.
    """
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    operation: Callable[..., Sequence[Any]] = gen_xla_ops.xla_custom_call_v2
    return operation


def keep_all_calls() -> None:
    """Adds a node to the default graph, so that TensorFlow keeps all calls of this graph's function.

    Relies on: XLA compiling `Assert` to nothing, and TensorFlow keeping the calls of a function that contains a
    stateful operation. Custom calls are not stateful for TensorFlow.
    Tried with: all.
    Notices: a call whose results are not used is not made.
    Lost then: in compiled functions, the ranks wait for collectives that some rank has left out, until the stall limit.
    """
    tf.raw_ops.Assert(condition=tf.constant(True), data=[tf.constant(0)])


@functools.cache
def run_uncompiled(holds_ours: Callable[[Any], bool]) -> None:
    """Lets the functions run uncompiled for whose graph `holds_ours` returns True, although they ask for XLA.

    Relies on: `ConcreteFunction.from_func_graph(graph, function_type, attrs, …)`, which makes each function; its
    attributes `_XlaMustCompile` and `_noinline` ask for XLA.
    Tried with: all.
    Notices: importing the class fails, or it lacks the method: ImportError or AttributeError.
    Lost then: `tf.function(jit_compile=True)` with a collective that XLA cannot compile is an error that says so.
    """
    from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction

    original = ConcreteFunction.from_func_graph

    @functools.wraps(original)
    def from_func_graph(graph: Any, function_type: Any, attrs: Any, *more: Any, **others: Any) -> Any:
        if attrs and attrs.get(_ATTRIBUTES[0]) and holds_ours(graph):
            attrs = {name: value for name, value in attrs.items() if name not in _ATTRIBUTES}
        return original(graph, function_type, attrs, *more, **others)

    ConcreteFunction.from_func_graph = from_func_graph
