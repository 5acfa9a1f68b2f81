"""The collectives on MXNet's arrays. Each returns an array that MXNet's engine fills in when all ranks have called it.

A trailing underscore means in place. `priority` goes to MXNet's engine; it rarely has an effect, because the engine
starts a collective as soon as its arrays are ready. Wrong arguments raise an error at the call. Errors that only the
other ranks or the engine can know are raised when a program waits for the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np

from perseus_like.collectives import (
    Adasum,
    Average,
    Collectives,
    Op,
    Sum,
    group_wire,
    member_id,
    reduce_options,
    resolve_op,
    root_within,
    scattered_rows,
)
from perseus_like.errors import HorovodInternalError
from perseus_like.process_sets import ProcessSet, global_process_set
from perseus_like.request_names import names
from perseus_like.tables import DType, Verb

from .engine import push
from .tensors import checked, new_array, number_of, tensors

Array = Any  # mxnet.nd.NDArray or mxnet.np.ndarray


class MXNetValueError(ValueError, mx.base.MXNetError):  # type: ignore[misc]
    """Wrong arguments of an alltoall. It is a ValueError, and an MXNetError as in Horovod."""


# Collectives whose result has a size that other ranks determine. They wait for the result.
_waiting: Collectives[Array] = Collectives(tensors)


def reduce(
    verb: str,
    arrays: Sequence[Array],
    outputs: Sequence[Array],
    op: Op,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    priority: int,
    wire: DType | None = None,
    also_written: Sequence[Array] = (),
) -> None:
    """Reduces `arrays` into `outputs`, as one unit, in MXNet's engine."""
    set_id = member_id(process_set)
    on_the_wire = group_wire(verb, [number_of(checked(array)) for array in arrays], wire)
    options = reduce_options(op, prescale, postscale, on_the_wire)

    def start(full: str) -> None:
        core_verb = Verb.adasum if op is Adasum else Verb.allreduce
        push(full, core_verb, arrays, outputs, set_id, priority, options, also_written=also_written)

    names.submit(verb, name, set_id, start)


def _new_like(arrays: Sequence[Array]) -> list[Array]:
    return [new_array(array.shape, array) for array in map(checked, arrays)]


def allreduce(
    tensor: Array,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Array:
    """Returns the reduction of all ranks' arrays: their average unless `op` is another operation."""
    output = _new_like([tensor])
    chosen = resolve_op(op, average)
    reduce("allreduce", [tensor], output, chosen, name, prescale_factor, postscale_factor, process_set, priority)
    return output[0]


def allreduce_(
    tensor: Array,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Array:
    chosen = resolve_op(op, average)
    reduce("allreduce", [tensor], [tensor], chosen, name, prescale_factor, postscale_factor, process_set, priority)
    return tensor


def grouped_allreduce(
    tensors: Sequence[Array],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Sequence[Array]:
    """Reduces several arrays as one unit: all or none. Returns an empty list for an empty list."""
    if not tensors:
        return tensors
    outputs = _new_like(tensors)
    chosen = resolve_op(op, average)
    factors = (prescale_factor, postscale_factor)
    reduce("grouped_allreduce", tensors, outputs, chosen, name, *factors, process_set, priority)
    return outputs


def grouped_allreduce_(
    tensors: Sequence[Array],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Sequence[Array]:
    if not tensors:
        return tensors
    chosen = resolve_op(op, average)
    factors = (prescale_factor, postscale_factor)
    reduce("grouped_allreduce", tensors, tensors, chosen, name, *factors, process_set, priority)
    return tensors


def _broadcast(
    tensor: Array, output: Array, root_rank: int, name: str | None, priority: int, process_set: ProcessSet
) -> Array:
    set_id = member_id(process_set)
    root = root_within(root_rank, process_set)
    number_of(checked(tensor))

    def start(full: str) -> None:
        push(full, Verb.broadcast, [tensor], [output], set_id, priority, root=root)

    names.submit("broadcast", name, set_id, start)
    return output


def broadcast(
    tensor: Array,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Returns the array of `root_rank` on every rank. `root_rank` is a rank in the job, also with a process set."""
    return _broadcast(tensor, _new_like([tensor])[0], root_rank, name, priority, process_set)


def broadcast_(
    tensor: Array,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    return _broadcast(tensor, tensor, root_rank, name, priority, process_set)


def allgather(
    tensor: Array, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> Array:
    """Returns all ranks' arrays, concatenated along dimension 0. Blocks until the size of the result is known."""
    return _waiting.allgather(tensor, name, process_set).result()


def grouped_allgather(
    tensors: Sequence[Array],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Sequence[Array]:
    if not tensors:
        return tensors
    return _waiting.grouped_allgather(tensors, name, process_set).result()


def alltoall(
    tensor: Array,
    splits: Sequence[int] | Array | None = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Array | tuple[Array, Array]:
    """Sends `splits[r]` rows to rank r, or equally many to each rank without `splits`. Blocks until it is done.

    Returns the received rows; with `splits`, also the number of rows from each rank (int32). Raises MXNetValueError
    unless `splits` are whole numbers that fit the tensor and the process set.
    """
    plain = splits.asnumpy().tolist() if isinstance(splits, mx.nd.NDArray) else splits
    try:
        received, rows = _waiting.alltoall(tensor, plain, name, process_set).result()
    except HorovodInternalError:
        raise
    except ValueError as error:
        raise MXNetValueError(str(error)) from None
    if splits is None:
        return received
    return received, mx.nd.array(np.array(rows, np.int32), dtype=np.int32)


def _reduce_scatter(
    verb: str,
    arrays: Sequence[Array],
    op: int,
    name: str | None,
    priority: int,
    process_set: ProcessSet,
    prescale: float,
    postscale: float,
) -> list[Array]:
    chosen = resolve_op(op)
    if chosen not in (Average, Sum):
        raise ValueError(f"{verb}: the operation {chosen.name} is not supported; use Average or Sum")
    set_id = member_id(process_set)
    if not all(checked(array).shape for array in arrays):
        raise ValueError(f"{verb}: an array has no dimension 0; reshape it to one element")
    outputs = [new_array((scattered_rows(array.shape[0], process_set), *array.shape[1:]), array) for array in arrays]
    options = reduce_options(chosen, prescale, postscale)

    def start(full: str) -> None:
        push(full, Verb.reduce_scatter, arrays, outputs, set_id, priority, options)

    names.submit(verb, name, set_id, start)
    return outputs


def reducescatter(
    tensor: Array,
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Array:
    """Returns this rank's rows of the reduction."""
    factors = (prescale_factor, postscale_factor)
    return _reduce_scatter("reducescatter", [tensor], op, name, priority, process_set, *factors)[0]


def grouped_reducescatter(
    tensors: Sequence[Array],
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Sequence[Array]:
    if not tensors:
        return tensors
    factors = (prescale_factor, postscale_factor)
    return _reduce_scatter("grouped_reducescatter", tensors, op, name, priority, process_set, *factors)


__all__ = [
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "reducescatter",
]
