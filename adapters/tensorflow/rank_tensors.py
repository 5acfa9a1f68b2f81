"""Rank, size and similar numbers as tensors. In a graph, they have the value at the time of the run."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from perseus_like.docstrings import documented_as
from perseus_like.session import session

from .errors import translated
from .native import operations
from .requests import xla


def number(what: str, process_set_id: int = 0, name: str | None = None) -> Any:
    """Returns rank, size, local_rank, local_size or included as an int32. HorovodInternalError before init()."""
    if not tf.executing_eagerly() and xla.is_compiling():
        return tf.constant(_now(what, process_set_id), tf.int32)
    try:
        return operations.perseus_number(what=what, process_set_id=process_set_id, name=name)
    except tf.errors.OpError as error:
        raise (translated(error) or error) from None


def _now(what: str, process_set_id: int) -> int:
    if what in ("local_rank", "local_size"):
        return int(getattr(session.core, what)())
    ranks = session.core.process_set_ranks(process_set_id)
    if what == "size":
        return len(ranks)
    return int(session.core.rank() in ranks) if what == "included" else int(ranks.index(session.core.rank()))


def rank_op(name: str | None = None) -> Any:
    """Returns the rank of this process in the job, as a tensor.

    In a graph, the tensor has the value at the time of the run.

    Args:
        name: the name of the operation in a graph.

    Returns:
        A scalar of dtype int32.

    Raises:
        HorovodInternalError: `init` was not called.

    Examples:
        >>> int(hvd.rank_op())
        0
    """
    return number("rank", name=name)


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Returns the number of ranks in a process set, as a tensor.

    In a graph, the tensor has the value at the time of the run.

    Args:
        process_set_id: the id of a registered set. 0 is the set of all ranks.
        name: the name of the operation in a graph.

    Returns:
        A scalar of dtype int32.

    Raises:
        HorovodInternalError: `init` was not called. Also if the set is not registered.

    Examples:
        >>> int(hvd.size_op())
        1
    """
    return number("size", process_set_id, name)


@documented_as(rank_op)
def local_rank_op(name: str | None = None) -> Any:
    """Returns the rank of this process among the processes of its host, as a tensor.

    In a graph, the tensor has the value at the time of the run.

    Examples:
        >>> int(hvd.local_rank_op())
        0
    """
    return number("local_rank", name=name)


@documented_as(rank_op)
def local_size_op(name: str | None = None) -> Any:
    """Returns the number of processes on this host, as a tensor.

    In a graph, the tensor has the value at the time of the run.

    Examples:
        >>> int(hvd.local_size_op())
        1
    """
    return number("local_size", name=name)


@documented_as(size_op)
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Returns 1 if this process is in a process set, otherwise 0, as a tensor.

    In a graph, the tensor has the value at the time of the run.

    Examples:
        >>> int(hvd.process_set_included_op())
        1
    """
    return number("included", process_set_id, name)
