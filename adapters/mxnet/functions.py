"""From one rank to all: a model's parameters, any object."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import mxnet as mx
from mxnet.gluon.parameter import DeferredInitializationError, Parameter

from perseus_like import objects, rank, size
from perseus_like.process_sets import ProcessSet, global_process_set

from .gradient_memory import after_initialization
from .ops import allgather, broadcast_
from .release import ParameterDict


def broadcast_parameters(params: Any, root_rank: int = 0, prefix: str | None = None) -> None:
    """Root's values into the parameters of all ranks.

    `params`: what `Module.get_params()` or `Block.collect_params()` gives: a dictionary of arrays or of gluon's
    parameters. Those whose shape is not known yet follow when the first batch makes it known. `prefix` goes before the
    names, where several models have the same.
    """
    if not isinstance(params, Mapping | ParameterDict):
        raise ValueError(
            f"broadcast_parameters takes a dictionary or collect_params() of a block, not {type(params).__name__}"
        )
    arrays: list[Any] = []
    for key, value in sorted(params.items()):
        name = f"{prefix or ''}{key}"
        if not isinstance(value, Parameter):
            arrays.append(broadcast_(value, root_rank, f"parameters.{name}"))
            continue
        try:
            value.list_data()
        except DeferredInitializationError:
            after_initialization(value, partial(_broadcast_parameter, value, root_rank, name))
        else:
            arrays += _broadcast_parameter(value, root_rank, name)
    for array in arrays:
        array.wait_to_read()


def _broadcast_parameter(parameter: Parameter, root_rank: int, name: str) -> list[Any]:
    """Into its copies on all devices of this process."""
    first, *copies = parameter.list_data()
    with mx.autograd.pause():
        broadcast_(first, root_rank, f"parameters.{name}")
        for copy in copies:
            copy[:] = first.as_in_context(copy.ctx)
    return [first, *copies]


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Root's object on every rank, pickled on the way."""
    return objects.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Every rank's object, by rank, pickled on the way."""
    return objects.allgather_object(obj, name, process_set)


# Beside this file's own, the names that Horovod's module of this path shows.
__all__ = [
    "allgather",
    "allgather_object",
    "broadcast_",
    "broadcast_object",
    "broadcast_parameters",
    "rank",
    "size",
]
