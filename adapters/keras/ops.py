"""The collectives on tensors of the backend, and on values that Keras can convert to a tensor, such as metrics."""

from __future__ import annotations

from typing import Any

from perseus_like.collectives import Average
from perseus_like.docstrings import documented

from . import backends

_backend = backends.chosen()
_framework = _backend.framework
Compression = _framework.Compression


@documented
def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = True,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Returns the average of all ranks' values, or another reduction.

    Args:
        value: a tensor of the backend, or what Keras can make a tensor of, such as a number or a NumPy array. All ranks
            pass the same dtype and the same shape.
        average: True (the default) is Average, False is Sum. `op` overrides it.

    Returns:
        A tensor of the backend, of the same shape and dtype.

    Examples:
        >>> float(hvd.allreduce(2.0, name="loss"))
        2.0
    """
    return _framework.allreduce(
        _backend.tensor(value),
        average=average if op is None else None,
        name=name,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        op=op,
        compression=compression,
    )


@documented
def allgather(value: Any, name: str | None = None) -> Any:
    """Returns all ranks' values, concatenated along dimension 0 in the order of ranks.

    Args:
        value: a tensor of the backend, or what Keras can make a tensor of, such as a number or a NumPy array. All ranks
            pass the same dtype and the same shape, except for dimension 0.

    Returns:
        A tensor of the backend. Its dimension 0 is the sum of all ranks' dimensions 0.

    Examples:
        >>> keras.ops.convert_to_numpy(hvd.allgather([1.0, 2.0])).tolist()
        [1.0, 2.0]
    """
    return _framework.allgather(_backend.tensor(value), name=name)


@documented
def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Returns the value of `root_rank` on every rank.

    Args:
        value: a tensor of the backend, or what Keras can make a tensor of, such as a number or a NumPy array. All ranks
            pass the same dtype and the same shape.

    Returns:
        A tensor of the backend, of the same shape and dtype.

    Examples:
        >>> float(hvd.broadcast(0.5, root_rank=0))
        0.5
    """
    return _framework.broadcast(_backend.tensor(value), root_rank, name=name)


@documented
def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """Returns this rank's rows of the reduction of all ranks' values.

    Args:
        value: a tensor of the backend, or what Keras can make a tensor of, such as a number or a NumPy array. All ranks
            pass the same dtype and the same shape.

    Returns:
        A tensor of the backend. Dimension 0 is divided among the ranks; if it does not divide, the first ranks get
        one more row.

    Examples:
        >>> keras.ops.convert_to_numpy(hvd.reducescatter([1.0, 2.0])).tolist()  # one rank gets all rows
        [1.0, 2.0]
    """
    return _framework.reducescatter(_backend.tensor(value), name=name, op=op)


def broadcast_global_variables(root_rank: int) -> Any:
    """Assigns the root rank's values to all variables of a TensorFlow 1 graph.

    Args:
        root_rank: the rank in the job whose values all ranks get.

    Returns:
        The operation, for `session.run`.

    Raises:
        RuntimeError: there is no such graph. The text says what to call instead, `BroadcastGlobalVariablesCallback`.

    Examples:
        >>> hvd.broadcast_global_variables(0)
        Traceback (most recent call last):
        RuntimeError: ...
    """
    return _backend.broadcast_global_variables(root_rank)


__all__ = [
    "Compression",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "reducescatter",
]
