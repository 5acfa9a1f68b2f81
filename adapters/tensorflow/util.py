"""The module `horovod.tensorflow.util`: helpers that programs import although they are private."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from .variables import refs_to_vars, vars_to_refs

_Result = TypeVar("_Result")


def _executing_eagerly() -> bool:
    """Returns whether operations are executed at once, outside of any graph."""
    return bool(tf.executing_eagerly())


def _make_subgraph(f: Callable[..., Any]) -> Any:
    """Returns `f` as a tf.function."""
    return tf.function(f)


def _cache(f: Callable[..., _Result]) -> Callable[..., _Result]:
    """Decorates a function of hashable arguments: keeps its results, separately for eager execution and graphs."""
    results: dict[Any, _Result] = {}

    @functools.wraps(f)
    def cached(*args: Any) -> _Result:
        key = (args, _executing_eagerly())
        if key not in results:
            results[key] = f(*args)
        return results[key]

    return cached


__all__ = ["refs_to_vars", "vars_to_refs"]
