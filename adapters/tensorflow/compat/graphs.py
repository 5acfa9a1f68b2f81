"""Graphs, and the lists in which TensorFlow looks up how to trace operations and functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def run_at_once(pruned_if_unused: Iterable[str], always_run: Iterable[str]) -> None:
    """Lets any number of these operations of a tf.function run at once, in place of one after the other.

    Relies on: `auto_control_deps.ASYNC_STATEFUL_OPS` and `MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS`, sets of names that
    tracing looks up in the module. All other stateful operations of a tf.function run in the order of the program.
    Tried with: all.
    Notices: importing the module or reading the sets fails: ImportError, AttributeError or TypeError.
    Lost then: the collectives of a graph run one after the other. The log says so.
    """
    from tensorflow.python.framework import auto_control_deps as lists

    pruned = frozenset(lists.ASYNC_STATEFUL_OPS) | frozenset(pruned_if_unused)
    always = frozenset(lists.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS) | frozenset(always_run)
    lists.ASYNC_STATEFUL_OPS, lists.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS = pruned, always


def leave_unconverted(package: str) -> None:
    """Keeps AutoGraph from rewriting the functions of a Python package.

    Relies on: `autograph.core.config.CONVERSION_RULES`, a tuple of rules, and `config.DoNotConvert(prefix)`.
    Tried with: all.
    Notices: importing the module or reading the rules fails; then nothing is done.
    Lost then: each tf.function takes longer to trace.
    """
    try:
        from tensorflow.python.autograph.core import config

        config.CONVERSION_RULES = (config.DoNotConvert(package), *config.CONVERSION_RULES)
    except (ImportError, AttributeError, TypeError):
        return


def state_of(graph: Any) -> dict[str, Any]:
    """Returns a dictionary that lives as long as the graph. Its values may be nodes of the graph.

    Relies on: graphs accepting further attributes. In a table beside the graphs, nodes would keep their graph alive.
    Tried with: all.
    Notices: setting the attribute fails with an AttributeError.
    Lost then: collectives in graphs fail with this error.
    """
    state: dict[str, Any] | None = getattr(graph, "_perseus_like", None)
    if state is None:
        state = graph._perseus_like = {}
    return state
