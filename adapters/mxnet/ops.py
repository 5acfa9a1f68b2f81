"""The verbs on MXNet's arrays: each gives an array that MXNet's engine fills in when all ranks have come.

With a trailing underscore in place. `priority` is handed to MXNet's engine; as it starts a verb as soon as its array is
ready, there is hardly ever one to put before another. Errors that need the other ranks, or the engine, raise where the
result is waited for; mistakes in the arguments at the call.
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
    core_op,
    group_wire,
    member_id,
    resolve_op,
    root_within,
    scattered_rows,
)
from perseus_like.errors import HorovodInternalError
from perseus_like.process_sets import ProcessSet, global_process_set
from perseus_like.request_names import names
from perseus_like.tensor import DType

from .engine import Verb, push
from .tensors import checked, new_array, number_of, tensors

Array = Any  # mxnet.nd.NDArray or mxnet.np.ndarray


class MXNetValueError(ValueError, mx.base.MXNetError):  # type: ignore[misc]
    """A mistake in the arguments of an alltoall: a ValueError, and Horovod's MXNetError."""


# Verbs whose result has a size that other ranks know: they wait for it.
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
    """Has the engine reduce `arrays` into `outputs`, as one unit."""
    set_id = member_id(process_set)
    on_the_wire = group_wire(verb, [number_of(checked(array)) for array in arrays], wire)
    number, average = core_op(op)

    def start(full: str) -> None:
        push(
            full,
            Verb.adasum if op is Adasum else Verb.allreduce,
            arrays,
            outputs,
            set_id,
            priority,
            number,
            average,
            prescale,
            postscale,
            on_the_wire,
            also_written=also_written,
        )

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
    """The reduction of every rank's array: Average unless `op` says otherwise."""
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
    """Several arrays as one unit: all or nothing. An empty list is given back as it is."""
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
    """The array of `root_rank` (its rank in the job, also with a process set) on every rank."""
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
    """All ranks' arrays, one after the other along dimension 0. Waits, for the size of the result."""
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
    """`splits[r]` rows to rank r. With splits: what came, and the rows from each rank; without: what came. Waits.

    Raises MXNetValueError unless `splits` are whole numbers that fit the tensor and the process set.
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
        raise ValueError(f"{verb} knows Average and Sum, not {chosen.name}")
    set_id = member_id(process_set)
    if not all(checked(array).shape for array in arrays):
        raise ValueError(f"{verb}: an array has no dimension 0 to divide; reshape it to one element")
    outputs = [new_array((scattered_rows(array.shape[0], process_set), *array.shape[1:]), array) for array in arrays]
    number, average = core_op(chosen)

    def start(full: str) -> None:
        factors = (number, average, prescale, postscale)
        push(full, Verb.reduce_scatter, arrays, outputs, set_id, priority, *factors)

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
    """This rank's rows of the reduction."""
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
