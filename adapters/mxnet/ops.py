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

from perseus_like.arguments import group_wire, member_id, root_within, scattered_rows
from perseus_like.collectives import Collectives
from perseus_like.documentation import documented
from perseus_like.errors import HorovodInternalError
from perseus_like.operations import Adasum, Average, Op, Sum, reduce_options, resolve_op
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


@documented
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
    """Returns the reduction of all ranks' arrays.

    Returns:
        A new array of the same shape and dtype. An average of integers is rounded toward zero.

    Raises:
        ValueError: the dtype or `op` is not supported, or this rank is not in `process_set`, or the set is not
            registered.
        MXNetError: the collective failed. The function that waits for the result raises it, such as `asnumpy`.

    Examples:
        >>> hvd.allreduce(mx.nd.array([1.0, 2.0]), op=hvd.Sum, name="loss").asnumpy()  # by hvd.size() ranks
        array([1., 2.], dtype=float32)
    """
    output = _new_like([tensor])
    chosen = resolve_op(op, average)
    reduce("allreduce", [tensor], output, chosen, name, prescale_factor, postscale_factor, process_set, priority)
    return output[0]


@documented
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
    """Replaces the elements of an array by the reduction of all ranks' arrays.

    Returns:
        `tensor` itself.

    Raises:
        ValueError: the dtype or `op` is not supported, or this rank is not in `process_set`, or the set is not
            registered.
        MXNetError: the collective failed. The function that waits for the result raises it, such as `asnumpy`.

    Examples:
        >>> array = mx.nd.array([1.0, 2.0])
        >>> hvd.allreduce_(array, op=hvd.Sum) is array
        True
    """
    chosen = resolve_op(op, average)
    reduce("allreduce", [tensor], [tensor], chosen, name, prescale_factor, postscale_factor, process_set, priority)
    return tensor


@documented
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
    """Reduces several arrays as one unit: if one of them fails, all fail.

    Returns:
        New arrays of the same shapes and dtypes. An empty list for an empty list.

    Raises:
        ValueError: the dtype or `op` is not supported, or this rank is not in `process_set`, or the set is not
            registered.
        MXNetError: the collective failed. The function that waits for the result raises it, such as `asnumpy`.

    Examples:
        >>> [each.asnumpy().tolist() for each in hvd.grouped_allreduce([mx.nd.array([1.0]), mx.nd.array([2.0, 3.0])])]
        [[1.0], [2.0, 3.0]]
    """
    if not tensors:
        return tensors
    outputs = _new_like(tensors)
    chosen = resolve_op(op, average)
    factors = (prescale_factor, postscale_factor)
    reduce("grouped_allreduce", tensors, outputs, chosen, name, *factors, process_set, priority)
    return outputs


@documented
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
    """Replaces the elements of several arrays by their reductions, as one unit.

    Returns:
        The same arrays. An empty list for an empty list.

    Raises:
        ValueError: the dtype or `op` is not supported, or this rank is not in `process_set`, or the set is not
            registered.
        MXNetError: the collective failed. The function that waits for the result raises it, such as `asnumpy`.

    Examples:
        >>> arrays = [mx.nd.array([1.0]), mx.nd.array([2.0, 3.0])]
        >>> hvd.grouped_allreduce_(arrays)[1] is arrays[1]
        True
    """
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


@documented
def broadcast(
    tensor: Array,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Returns the array of `root_rank` on every rank.

    Returns:
        A new array of the same shape and dtype.

    Raises:
        ValueError: the dtype is not supported, `root_rank` is not in `process_set`, or this rank is not in
            `process_set`, or the set is not registered.
        MXNetError: the collective failed. The function that waits for the result raises it, such as `asnumpy`.

    Examples:
        >>> hvd.broadcast(mx.nd.array([1.0, 2.0]), root_rank=0).asnumpy()
        array([1., 2.], dtype=float32)
    """
    return _broadcast(tensor, _new_like([tensor])[0], root_rank, name, priority, process_set)


@documented
def broadcast_(
    tensor: Array,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Replaces the elements of an array by those of `root_rank`.

    Returns:
        `tensor` itself.

    Raises:
        ValueError: the dtype is not supported, `root_rank` is not in `process_set`, or this rank is not in
            `process_set`, or the set is not registered.
        MXNetError: the collective failed. The function that waits for the result raises it, such as `asnumpy`.

    Examples:
        >>> weights = mx.nd.array([1.0, 2.0])
        >>> hvd.broadcast_(weights, root_rank=0) is weights
        True
    """
    return _broadcast(tensor, tensor, root_rank, name, priority, process_set)


@documented
def allgather(
    tensor: Array, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> Array:
    """Returns all ranks' arrays, concatenated along dimension 0 in the order of ranks.

    Blocks until the size of the result is known.

    Returns:
        A new array of the same dtype on all ranks. Its dimension 0 is the sum of all ranks' dimensions 0.

    Examples:
        >>> hvd.allgather(mx.nd.array([1.0, 2.0])).asnumpy()  # all rows of all ranks
        array([1., 2.], dtype=float32)
    """
    return _waiting.allgather(tensor, name, process_set).result()


@documented
def grouped_allgather(
    tensors: Sequence[Array],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Sequence[Array]:
    """Gathers several arrays as one unit: if one of them fails, all fail.

    Blocks until the size of the result is known.

    Returns:
        For each array, all ranks' rows in a new array. An empty list for an empty list.

    Examples:
        >>> [each.asnumpy().tolist() for each in hvd.grouped_allgather([mx.nd.array([1.0]), mx.nd.array([2.0, 3.0])])]
        [[1.0], [2.0, 3.0]]
    """
    if not tensors:
        return tensors
    return _waiting.grouped_allgather(tensors, name, process_set).result()


@documented
def alltoall(
    tensor: Array,
    splits: Sequence[int] | Array | None = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Array | tuple[Array, Array]:
    """Sends `splits[r]` rows to rank r of the process set, and returns the rows that the ranks send to this one.

    Blocks until it is done.

    Returns:
        The received rows in the order of the sending ranks. If `splits` are given: a pair of these rows and an array
        of dtype int32 with the number of rows from each rank.

    Raises:
        MXNetValueError: `splits` do not fit the array and the process set, or are not whole numbers.
        ValueError: the dtype is not supported, or this rank is not in `process_set`.
        HorovodInternalError: the collective failed.

    Examples:
        >>> rows, counts = hvd.alltoall(mx.nd.array([1.0, 2.0, 3.0]), splits=[2])  # the third row is not sent
        >>> rows.asnumpy(), counts.asnumpy().tolist()
        (array([1., 2.], dtype=float32), [2])
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


@documented
def reducescatter(
    tensor: Array,
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Array:
    """Returns this rank's rows of the reduction of all ranks' arrays.

    Returns:
        A new array of the same dtype. Dimension 0 is divided among the ranks; if it does not divide, the first ranks
        get one more row.

    Raises:
        ValueError: the dtype or `op` is not supported, the array has no dimension 0, or this rank is not in
            `process_set`, or the set is not registered.
        MXNetError: the collective failed. The function that waits for the result raises it, such as `asnumpy`.

    Examples:
        >>> hvd.reducescatter(mx.nd.array([1.0, 2.0]), op=hvd.Sum).asnumpy()  # one rank gets all rows
        array([1., 2.], dtype=float32)
    """
    factors = (prescale_factor, postscale_factor)
    return _reduce_scatter("reducescatter", [tensor], op, name, priority, process_set, *factors)[0]


@documented
def grouped_reducescatter(
    tensors: Sequence[Array],
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Sequence[Array]:
    """Does a reducescatter of several arrays as one unit: if one of them fails, all fail.

    Returns:
        For each array, this rank's rows of the reduction. An empty list for an empty list.

    Raises:
        ValueError: the dtype or `op` is not supported, the array has no dimension 0, or this rank is not in
            `process_set`, or the set is not registered.
        MXNetError: the collective failed. The function that waits for the result raises it, such as `asnumpy`.

    Examples:
        >>> shares = hvd.grouped_reducescatter([mx.nd.array([1.0]), mx.nd.array([2.0, 3.0])])
        >>> [each.asnumpy().tolist() for each in shares]
        [[1.0], [2.0, 3.0]]
    """
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
