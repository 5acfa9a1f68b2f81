"""The verbs on whatever Keras can make a tensor of, for metrics and the like. On a tensor of the backend."""

from __future__ import annotations

from typing import Any

from perseus_like.collectives import Average

from . import backends

_backend = backends.chosen()
_framework = _backend.framework
Compression = _framework.Compression


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = True,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """The average over all ranks; the sum with `average=False`; or what `op` says."""
    return _framework.allreduce(
        _backend.tensor(value),
        average=average if op is None else None,
        name=name,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        op=op,
        compression=compression,
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """All ranks' values, one after the other along dimension 0, in which they may differ."""
    return _framework.allgather(_backend.tensor(value), name=name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Root's value on every rank."""
    return _framework.broadcast(_backend.tensor(value), root_rank, name=name)


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """This rank's rows of the reduction; the first ranks get one more where rows do not divide."""
    return _framework.reducescatter(_backend.tensor(value), name=name, op=op)


def broadcast_global_variables(root_rank: int) -> Any:
    """Root's values into all variables of a graph of TensorFlow 1. Elsewhere an error that says what to call."""
    return _backend.broadcast_global_variables(root_rank)
