"""The collectives on NumPy arrays: blocking, asynchronous (`_async`), and in place (a trailing underscore)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from perseus_like.collectives import Average, Collectives, resolve_op
from perseus_like.compression import NoneCompressor, wire_of
from perseus_like.handle import Pending, handles
from perseus_like.process_sets import ProcessSet, global_process_set

from .tensors import tensors

Array = np.ndarray[Any, Any]
Compressor = Any

_verbs: Collectives[Array] = Collectives(tensors)

poll = handles.poll
synchronize = handles.synchronize


def _start_allreduce(
    array: Array,
    average: bool | None,
    name: str | None,
    op: int | None,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    compression: Compressor = NoneCompressor,
    in_place: bool = False,
) -> Pending[Array]:
    chosen = resolve_op(op, average)
    wire = wire_of(compression)
    return _verbs.allreduce(array, chosen, name, prescale_factor, postscale_factor, process_set, wire, in_place)


def _start_grouped_allreduce(
    arrays: Sequence[Array],
    average: bool | None,
    name: str | None,
    op: int | None,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    compression: Compressor = NoneCompressor,
    in_place: bool = False,
) -> Pending[list[Array]]:
    chosen = resolve_op(op, average)
    wire = wire_of(compression)
    return _verbs.grouped_allreduce(
        arrays, chosen, name, prescale_factor, postscale_factor, process_set, wire, in_place
    )


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    compression: Compressor = NoneCompressor,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Returns the reduction of all ranks' arrays: their average unless `op` is another operation."""
    array = np.asarray(tensor)
    return _start_allreduce(
        array, average, name, op, prescale_factor, postscale_factor, process_set, compression
    ).result()


def allreduce_async(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    array = np.asarray(tensor)
    return handles.add(_start_allreduce(array, average, name, op, prescale_factor, postscale_factor, process_set))


def allreduce_(
    tensor: Array,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    return _start_allreduce(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set, in_place=True
    ).result()


def allreduce_async_(
    tensor: Array,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    return handles.add(
        _start_allreduce(tensor, average, name, op, prescale_factor, postscale_factor, process_set, in_place=True)
    )


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    compression: Compressor = NoneCompressor,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """Reduces several arrays as one unit: all or none."""
    arrays = [np.asarray(tensor) for tensor in tensors]
    return _start_grouped_allreduce(
        arrays, average, name, op, prescale_factor, postscale_factor, process_set, compression
    ).result()


def grouped_allreduce_async(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    arrays = [np.asarray(tensor) for tensor in tensors]
    return handles.add(
        _start_grouped_allreduce(arrays, average, name, op, prescale_factor, postscale_factor, process_set)
    )


def grouped_allreduce_(
    tensors: Sequence[Array],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    return _start_grouped_allreduce(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set, in_place=True
    ).result()


def grouped_allreduce_async_(
    tensors: Sequence[Array],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    return handles.add(
        _start_grouped_allreduce(
            tensors, average, name, op, prescale_factor, postscale_factor, process_set, in_place=True
        )
    )


def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """Returns the array of `root_rank` on every rank. `root_rank` is a rank in the job, also with a process set."""
    return _verbs.broadcast(np.asarray(tensor), root_rank, name, process_set).result()


def broadcast_async(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    return handles.add(_verbs.broadcast(np.asarray(tensor), root_rank, name, process_set))


def broadcast_(
    tensor: Array, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    return _verbs.broadcast(tensor, root_rank, name, process_set, in_place=True).result()


def broadcast_async_(
    tensor: Array, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    return handles.add(_verbs.broadcast(tensor, root_rank, name, process_set, in_place=True))


def allgather(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Array:
    """Returns all ranks' arrays, concatenated along dimension 0."""
    return _verbs.allgather(np.asarray(tensor), name, process_set).result()


def allgather_async(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    return handles.add(_verbs.allgather(np.asarray(tensor), name, process_set))


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Array]:
    return _verbs.grouped_allgather([np.asarray(tensor) for tensor in tensors], name, process_set).result()


def grouped_allgather_async(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    return handles.add(_verbs.grouped_allgather([np.asarray(tensor) for tensor in tensors], name, process_set))


def alltoall(
    tensor: Any,
    splits: Sequence[int] | Array | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array | tuple[Array, Array]:
    """Sends `splits[r]` rows to rank r, or equally many to each rank without `splits`.

    Returns the received rows; with `splits`, also the number of rows from each rank (int32).
    """
    pair = _start_alltoall(tensor, splits, name, process_set).result()
    return pair[0] if splits is None else pair


def alltoall_async(
    tensor: Any,
    splits: Sequence[int] | Array | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an alltoall. `synchronize` returns the rows and their numbers, also without `splits`."""
    return handles.add(_start_alltoall(tensor, splits, name, process_set))


def _start_alltoall(
    tensor: Any, splits: Sequence[int] | Array | None, name: str | None, process_set: ProcessSet
) -> Pending[tuple[Array, Array]]:
    plain = splits.tolist() if isinstance(splits, np.ndarray) else splits
    pending = _verbs.alltoall(np.asarray(tensor), plain, name, process_set)
    return pending.then(lambda pair: (pair[0], np.array(pair[1], np.int32)))


def reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Array:
    """Returns this rank's rows of the reduction."""
    return _verbs.reduce_scatter(
        np.asarray(tensor), resolve_op(op), name, prescale_factor, postscale_factor, process_set
    ).result()


def reducescatter_async(
    tensor: Any,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    return handles.add(
        _verbs.reduce_scatter(np.asarray(tensor), resolve_op(op), name, prescale_factor, postscale_factor, process_set)
    )


def grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Array]:
    arrays = [np.asarray(tensor) for tensor in tensors]
    return _verbs.grouped_reduce_scatter(
        arrays, resolve_op(op), name, prescale_factor, postscale_factor, process_set
    ).result()


def grouped_reducescatter_async(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    arrays = [np.asarray(tensor) for tensor in tensors]
    return handles.add(
        _verbs.grouped_reduce_scatter(arrays, resolve_op(op), name, prescale_factor, postscale_factor, process_set)
    )
