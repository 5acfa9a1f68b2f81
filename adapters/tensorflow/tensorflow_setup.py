"""Changes of TensorFlow when the first session of this process starts."""

from __future__ import annotations

import functools
from typing import Any

from perseus_like.session import session

from .compat import compiled_functions, graphs


@functools.cache
def prepare_tensorflow() -> str:
    """Changes TensorFlow once in a process. Returns why compiled functions cannot contain collectives; "" if they can.

    Programs that only import this adapter use an unchanged TensorFlow.
    """
    graphs.leave_unconverted(__name__.partition(".")[0])
    try:
        compiled_functions.keep_call_order(_last_call_of)
    except (ImportError, AttributeError) as error:
        return f"the calls of compiled functions cannot be put in order ({error})"
    return ""


def _last_call_of(graph: Any, call: Any) -> Any:
    state = graphs.state_of(graph)
    before = state.get("compiled_call")
    state["compiled_call"] = call
    return before


def _at_start() -> None:
    prepare_tensorflow()


session.on_start(_at_start)
if session.is_running():
    _at_start()
