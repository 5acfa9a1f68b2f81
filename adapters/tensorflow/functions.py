"""Broadcasts of variables, and broadcasts and gathers of Python objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from perseus_like import objects, rank, size
from perseus_like.docstrings import documented
from perseus_like.process_sets import ProcessSet, global_process_set

from .ops import allgather, broadcast
from .requests import request_of
from .requests.arguments import as_tensor, member_id, root_within
from .requests.execution import run
from .variables import assign, bytes_of, plain, value_of

T = TypeVar("T")

# The size of one broadcast: large enough to be fast, and small compared with a model.
CHUNK_BYTES = 64 << 20


def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Assigns the root rank's values to the variables of all ranks, so that all start with the same model.

    Args:
        variables: variables of TensorFlow or Keras, the same on all ranks in the same order.
        root_rank: the rank in the job whose values all ranks get.
        process_set: the ranks that take part. The default is all ranks of the job.
        inplace: has no effect; it is an argument of Horovod.

    Returns:
        None, or in a graph the operation that assigns.

    Raises:
        ValueError: a dtype cannot be communicated, or a rank is not in `process_set`.
        HorovodInternalError: the ranks passed different variables (DisagreementError), or a rank has ended.

    Examples:
        >>> weights = tf.Variable([1.0, 2.0])
        >>> hvd.broadcast_variables([weights], root_rank=0)
    """
    return _assign_all([plain(variable) for variable in variables], root_rank, "variables", process_set)


def broadcast_(
    variables: Iterable[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Does the same as `broadcast_variables`, and returns the variables.

    Args:
        variables: variables of TensorFlow or Keras, the same on all ranks in the same order.
        root_rank: the rank in the job whose values all ranks get.
        name: names the collectives. It is the same on all ranks.
        process_set: the ranks that take part. The default is all ranks of the job.

    Returns:
        The variables; in a graph, their values after the assignment.

    Raises:
        ValueError: a dtype cannot be communicated, or a rank is not in `process_set`.
        HorovodInternalError: the ranks passed different variables (DisagreementError), or a rank has ended.

    Examples:
        >>> weights = tf.Variable([1.0, 2.0])
        >>> hvd.broadcast_([weights], root_rank=0)[0] is weights
        True
    """
    assigned = [plain(variable) for variable in variables]
    done = _assign_all(assigned, root_rank, name or "variables", process_set)
    if done is None:
        return assigned
    with tf.control_dependencies([done]):
        return [tf.identity(as_tensor(variable)) for variable in assigned]


def broadcast_global_variables(root_rank: int) -> Any:
    """Returns the operation that assigns the root rank's values to all global variables of a TensorFlow 1 graph.

    Args:
        root_rank: the rank in the job whose values all ranks get.

    Returns:
        The operation, for `session.run`.

    Raises:
        RuntimeError: TensorFlow executes eagerly.

    Examples:
        >>> with tf.Graph().as_default():
        ...     _ = tf.compat.v1.get_variable("weights", [2])
        ...     hvd.broadcast_global_variables(0).type
        'NoOp'
    """
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


@documented
def broadcast_object(
    obj: T | None,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> T:
    """Returns the root's object on every rank. It is pickled; only ranks of the same job can send such objects.

    Args:
        session: has no effect; it is an argument of Horovod.

    Returns:
        On `root_rank` the object itself, on other ranks a copy.

    Examples:
        >>> hvd.broadcast_object({"epoch": 3}, root_rank=0)
        {'epoch': 3}
    """
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Returns a function that broadcasts its argument, an object that can be pickled.

    Args:
        root_rank: the rank in the job whose object all ranks get.
        session: has no effect; it is an argument of Horovod.
        name: names the collective. It is the same on all ranks.
        process_set: the ranks that take part. The default is all ranks of the job.

    Returns:
        A function of one argument that returns the object of `root_rank`, as `broadcast_object`.

    Examples:
        >>> hvd.broadcast_object_fn(root_rank=0)("settings")
        'settings'
    """
    return lambda obj: objects.broadcast_object(obj, root_rank, name, process_set)


@documented
def allgather_object(
    obj: T, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[T]:
    """Returns every rank's object. They are pickled; only ranks of the same job can send such objects.

    Args:
        session: has no effect; it is an argument of Horovod.

    Returns:
        The objects in the order of ranks. This rank's own object is a copy, too.

    Examples:
        >>> hvd.allgather_object({"rank": hvd.rank()})
        [{'rank': 0}]
    """
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
