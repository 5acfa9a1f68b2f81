"""Broadcasts of variables, and broadcasts and gathers of Python objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from perseus_like import objects, rank, size
from perseus_like.process_sets import ProcessSet, global_process_set

from .arguments import as_tensor, member_id, root_within
from .execution import run
from .ops import allgather, broadcast
from .requests import request_of
from .variables import assign, bytes_of, plain, value_of

# The size of one broadcast: large enough to be fast, and small compared with a model.
CHUNK_BYTES = 64 << 20


def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Assigns the root rank's values to the variables of all ranks. In a graph, returns the operation that does so.

    Takes variables of TensorFlow and Keras. `inplace` is ignored; it is an argument of Horovod.
    """
    return _assign_all([plain(variable) for variable in variables], root_rank, "variables", process_set)


def broadcast_(
    variables: Iterable[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Does the same as broadcast_variables, and returns the variables."""
    assigned = [plain(variable) for variable in variables]
    done = _assign_all(assigned, root_rank, name or "variables", process_set)
    if done is None:
        return assigned
    with tf.control_dependencies([done]):
        return [tf.identity(as_tensor(variable)) for variable in assigned]


def broadcast_global_variables(root_rank: int) -> Any:
    """Returns the operation that assigns the root rank's values to all global variables of a TensorFlow 1 graph."""
    if tf.executing_eagerly():
        raise RuntimeError(
            "broadcast_global_variables() needs a graph of TensorFlow 1; eagerly, pass the variables to "
            "broadcast_variables(model.variables, root_rank=0)"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


def _assign_all(variables: Sequence[Any], root_rank: int, name: str, process_set: ProcessSet) -> Any:
    set_id = member_id(process_set)
    root = root_within(root_rank, process_set)
    done = []
    for number, chunk in enumerate(_chunks(variables)):
        request = request_of("broadcast", f"{name}_{number}", set_id, grouped=True, root=root)
        values = run(request, [value_of(variable) for variable in chunk])
        done += [assign(variable, value) for variable, value in zip(chunk, values, strict=True)]
    return None if tf.executing_eagerly() else tf.group(*done)


def _chunks(variables: Sequence[Any]) -> list[list[Any]]:
    if len(variables) == 1:
        return [list(variables)]
    chunks: list[list[Any]] = []
    filled = CHUNK_BYTES
    for variable in variables:
        bytes_ = bytes_of([variable])
        if filled + bytes_ > CHUNK_BYTES:
            chunks.append([])
            filled = 0
        chunks[-1].append(variable)
        filled += bytes_
    return [chunk for chunk in chunks if chunk]


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the root rank's object on every rank. The object is pickled. `session` is ignored."""
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Returns a function that broadcasts its argument."""
    return lambda obj: objects.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Returns the objects of all ranks, in the order of ranks. The objects are pickled. `session` is ignored."""
    return objects.allgather_object(obj, name, process_set)


# The functions of this file, and further names of Horovod's module of this path.
__all__ = [
    "ProcessSet",
    "allgather",
    "allgather_object",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "global_process_set",
    "rank",
    "size",
]
