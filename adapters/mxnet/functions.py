"""Broadcasts of parameters, and broadcasts and gathers of Python objects."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import mxnet as mx
from mxnet.gluon.parameter import DeferredInitializationError, Parameter, ParameterDict

from perseus_like import rank, size
from perseus_like.objects import allgather_object, broadcast_object

from .compat.parameters import after_initialization
from .data_movement import allgather, broadcast_


def broadcast_parameters(params: Any, root_rank: int = 0, prefix: str | None = None) -> None:
    """Copies the root rank's values into the parameters of all ranks.

    Parameters of unknown shape are broadcast when the first batch has determined their shape.

    Args:
        params: the result of `Module.get_params()` or `Block.collect_params()`: a dictionary of arrays or of gluon's
            parameters.
        root_rank: the rank, in the job, whose values all ranks get.
        prefix: goes before the names, for several models with equal names.

    Raises:
        ValueError: `params` is not a dictionary.
        MXNetError: the ranks passed different parameters, or a rank has ended.

    Examples:
        >>> hvd.broadcast_parameters({"weights": mx.nd.array([1.0, 2.0])}, root_rank=0)
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
    """Broadcasts into the copies of the parameter on all devices of this process."""
    first, *copies = parameter.list_data()
    with mx.autograd.pause():
        broadcast_(first, root_rank, f"parameters.{name}")
        for copy in copies:
            copy[:] = first.as_in_context(copy.ctx)
    return [first, *copies]


# The functions of this file, and further names of Horovod's module of this path.
__all__ = [
    "allgather",
    "allgather_object",
    "broadcast_",
    "broadcast_object",
    "broadcast_parameters",
    "rank",
    "size",
]
