"""`python -m perseus_like.tensorflow.compat`: checks the private parts of TensorFlow that the functions rely on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from perseus_like.compat_probes import Changed, expect, main

from .. import native
from . import compiled_functions, eager_calls, graphs


def _parameters(function: Any) -> list[str]:
    return list(inspect.signature(inspect.unwrap(function)).parameters)


def _run_at_once() -> None:
    from tensorflow.python.framework import auto_control_deps as lists

    for name in ("ASYNC_STATEFUL_OPS", "MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS"):
        names = getattr(lists, name, None)
        is_set = isinstance(names, frozenset | set) and all(isinstance(each, str) for each in names)
        expect(is_set, f"auto_control_deps.{name} is no set of names")


def _leave_unconverted() -> None:
    from tensorflow.python.autograph.core import config

    expect(isinstance(config.CONVERSION_RULES, tuple), "autograph.core.config.CONVERSION_RULES is no tuple")
    rule = config.DoNotConvert("perseus_like")
    expect(any(type(each) is type(rule) for each in config.CONVERSION_RULES), "CONVERSION_RULES has no such rules")


def _is_for_xla() -> None:
    seen: list[bool] = []

    def look() -> Any:
        seen.append(compiled_functions.is_for_xla(tf.compat.v1.get_default_graph()))
        return tf.constant(1)

    tf.function(look).get_concrete_function()
    tf.function(look, jit_compile=True).get_concrete_function()
    expect(seen == [False, True], "GraphOrParentsInXlaContext does not tell graphs for XLA from others")


def _keep_call_order() -> None:
    from tensorflow.python.framework.ops import Operation
    from tensorflow.python.ops.control_flow_ops import XLAControlFlowContext

    for name, count in (("AddOp", 2), ("RequiresUniqueFunctionRetracing", 1)):
        method = getattr(XLAControlFlowContext, name, None)
        expect(method is not None, f"XLAControlFlowContext.{name} is missing")
        expect(len(_parameters(method)) == count, f"XLAControlFlowContext.{name} has other parameters")
    expect(hasattr(Operation, "_add_control_input"), "Operation._add_control_input is missing")


def _custom_call_operation() -> None:
    parameters = _parameters(compiled_functions.custom_call_operation())
    expected = ["operands", "call_target_name", "backend_config", "has_side_effect", "result_dtypes", "result_shapes"]
    expect(parameters[:6] == expected, "xla_custom_call_v2 has other parameters")


def _keep_all_calls() -> None:
    def compiled() -> Any:
        compiled_functions.keep_all_calls()
        return tf.constant(1)

    total = tf.function(compiled, jit_compile=True)
    expect(int(total()) == 1, "XLA does not compile Assert")
    operations = [node.type for node in total.get_concrete_function().graph.get_operations()]
    expect("Assert" in operations, "Assert is no node of a compiled function")


def _run_uncompiled() -> None:
    from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction

    parameters = _parameters(ConcreteFunction.from_func_graph)
    expect(
        parameters[:3] == ["graph", "function_type", "attrs"], "ConcreteFunction.from_func_graph has other parameters"
    )


def _state_of() -> None:
    with tf.Graph().as_default() as graph:
        graphs.state_of(graph)["key"] = tf.constant(1)
        expect("key" in graphs.state_of(graph), "a graph does not keep an attribute")


def _execute() -> None:
    def fail() -> list[Any]:
        raise Changed("TFE_Py_FastPathExecute does not take eager tensors")

    expect(eager_calls.is_fast(), "TFE_Py_FastPathExecute or its errors are missing")
    results = eager_calls.execute("AddV2", (tf.constant(1), tf.constant(2)), (), lambda _: None, fail)
    expect(int(results) == 3, "TFE_Py_FastPathExecute gives another result")  # type: ignore[call-overload]
    try:
        eager_calls.execute("AddV2", (tf.ones([2]), tf.ones([3])), (), ValueError, fail)
    except ValueError as error:
        expect("shapes" in str(error), "_NotOkStatusException has another message")


def _eager_tensor_class() -> None:
    expect(type(tf.constant(1)) is eager_calls.eager_tensor_class(), "tf.__internal__.EagerTensor is another class")


def _resource_variable_class() -> None:
    variable = tf.Variable(1)
    expect(type(variable) is eager_calls.resource_variable_class(), "variables are of another class")
    value = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
    expect(int(value) == 1, "ResourceVariable.handle is not the variable's resource")


def _copy_of() -> None:
    with tf.init_scope():
        expect(bool(native.operations.perseus_probe()), "the callback of an asynchronous kernel cannot be copied")


def _register_custom_call() -> None:
    problem = native.library.perseus_tensorflow_start_xla().decode()
    expect(not problem, problem)


# The probe of each function that relies on a private part. The last two functions are C++.
PROBES: dict[str, Callable[[], None]] = {
    "graphs.run_at_once": _run_at_once,
    "graphs.leave_unconverted": _leave_unconverted,
    "graphs.state_of": _state_of,
    "eager_calls.execute": _execute,
    "eager_calls.is_fast": _execute,
    "eager_calls.eager_tensor_class": _eager_tensor_class,
    "eager_calls.resource_variable_class": _resource_variable_class,
    "compiled_functions.is_for_xla": _is_for_xla,
    "compiled_functions.keep_call_order": _keep_call_order,
    "compiled_functions.custom_call_operation": _custom_call_operation,
    "compiled_functions.keep_all_calls": _keep_all_calls,
    "compiled_functions.run_uncompiled": _run_uncompiled,
    "done_callback.copy_of": _copy_of,
    "custom_calls.register_custom_call": _register_custom_call,
}

if __name__ == "__main__":
    main(f"TensorFlow {tf.__version__}", PROBES)
