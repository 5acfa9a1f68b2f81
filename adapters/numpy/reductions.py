"""Allreduce and reducescatter: blocking, asynchronous (`_async`), and in place (a trailing underscore)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from perseus_like.collectives import Average, resolve_op
from perseus_like.collectives.compression import NoneCompressor, wire_of
from perseus_like.collectives.handle import Handle, handles
from perseus_like.docstrings import documented
from perseus_like.process_sets import ProcessSet, global_process_set

from .tensors import Array, Plain, S, verbs

Compressor = Any


@documented
def allreduce(
    tensor: Array[S] | Plain,
    average: bool | None = None,
    name: str | None = None,
    compression: Compressor = NoneCompressor,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array[S]:
    """Returns the reduction of all ranks' arrays.

    Returns:
        A new array of the same shape and dtype. An average of integers is rounded toward zero.

    Examples:
        >>> hvd.allreduce(np.array([1.0, 2.0]), op=hvd.Sum, name="loss")  # by hvd.size() ranks
        array([1., 2.])
    """
    chosen = resolve_op(op, average)
    array = np.asarray(tensor)
    return verbs.allreduce(
        array, chosen, name, prescale_factor, postscale_factor, process_set, wire_of(compression)
    ).result()


@documented
def allreduce_async(
    tensor: Array[S] | Plain,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[Array[S]]:
    """Starts an allreduce, and returns without waiting for the other ranks.

    Returns:
        The handle for `poll` and `synchronize`, which returns a new array of the same shape and dtype.

    Examples:
        >>> handle = hvd.allreduce_async(np.array([1.0, 2.0]), name="gradient")
        >>> hvd.synchronize(handle)
        array([1., 2.])
    """
    chosen = resolve_op(op, average)
    array = np.asarray(tensor)
    return handles.add(verbs.allreduce(array, chosen, name, prescale_factor, postscale_factor, process_set))


@documented
def allreduce_(
    tensor: Array[S],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array[S]:
    """Replaces the elements of an array by the reduction of all ranks' arrays.

    Returns:
        `tensor` itself.

    Examples:
        >>> array = np.array([1.0, 2.0])
        >>> hvd.allreduce_(array, op=hvd.Sum) is array
        True
    """
    chosen = resolve_op(op, average)
    return verbs.allreduce(tensor, chosen, name, prescale_factor, postscale_factor, process_set, in_place=True).result()


@documented
def allreduce_async_(
    tensor: Array[S],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[Array[S]]:
    """Starts an allreduce in place, and returns without waiting for the other ranks.

    Until the handle is synchronized, the array must not be read or changed.

    Returns:
        The handle for `poll` and `synchronize`, which returns `tensor` itself.

    Examples:
        >>> array = np.array([1.0, 2.0])
        >>> handle = hvd.allreduce_async_(array, name="gradient")
        >>> hvd.synchronize(handle) is array
        True
    """
    chosen = resolve_op(op, average)
    return handles.add(
        verbs.allreduce(tensor, chosen, name, prescale_factor, postscale_factor, process_set, in_place=True)
    )


@documented
def grouped_allreduce(
    tensors: Sequence[Array[S] | Plain],
    average: bool | None = None,
    name: str | None = None,
    compression: Compressor = NoneCompressor,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array[S]]:
    """Reduces several arrays as one unit: if one of them fails, all fail.

    Returns:
        New arrays of the same shapes and dtypes.

    Examples:
        >>> hvd.grouped_allreduce([np.array([1.0]), np.array([2, 3])], op=hvd.Max)
        [array([1.]), array([2, 3])]
    """
    chosen = resolve_op(op, average)
    arrays = [np.asarray(tensor) for tensor in tensors]
    return verbs.grouped_allreduce(
        arrays, chosen, name, prescale_factor, postscale_factor, process_set, wire_of(compression)
    ).result()


@documented
def grouped_allreduce_async(
    tensors: Sequence[Array[S] | Plain],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[Array[S]]]:
    """Starts an allreduce of several arrays as one unit, and returns without waiting for the other ranks.

    Returns:
        The handle for `poll` and `synchronize`, which returns new arrays of the same shapes and dtypes.

    Examples:
        >>> handle = hvd.grouped_allreduce_async([np.array([1.0]), np.array([2, 3])])
        >>> hvd.synchronize(handle)
        [array([1.]), array([2, 3])]
    """
    chosen = resolve_op(op, average)
    arrays = [np.asarray(tensor) for tensor in tensors]
    return handles.add(verbs.grouped_allreduce(arrays, chosen, name, prescale_factor, postscale_factor, process_set))


@documented
def grouped_allreduce_(
    tensors: Sequence[Array[S]],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array[S]]:
    """Replaces the elements of several arrays by their reductions, as one unit.

    Returns:
        The same arrays.

    Examples:
        >>> arrays = [np.array([1.0]), np.array([2, 3])]
        >>> hvd.grouped_allreduce_(arrays)[1] is arrays[1]
        True
    """
    chosen = resolve_op(op, average)
    return verbs.grouped_allreduce(
        tensors, chosen, name, prescale_factor, postscale_factor, process_set, in_place=True
    ).result()


@documented
def grouped_allreduce_async_(
    tensors: Sequence[Array[S]],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[Array[S]]]:
    """Starts an allreduce of several arrays in place, and returns without waiting for the other ranks.

    Until the handle is synchronized, the arrays must not be read or changed.

    Returns:
        The handle for `poll` and `synchronize`, which returns the same arrays.

    Examples:
        >>> handle = hvd.grouped_allreduce_async_([np.array([1.0]), np.array([2, 3])])
        >>> hvd.synchronize(handle)
        [array([1.]), array([2, 3])]
    """
    chosen = resolve_op(op, average)
    return handles.add(
        verbs.grouped_allreduce(tensors, chosen, name, prescale_factor, postscale_factor, process_set, in_place=True)
    )


@documented
def reducescatter(
    tensor: Array[S] | Plain,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Array[S]:
    """Returns this rank's rows of the reduction of all ranks' arrays.

    Returns:
        A new array of the same dtype. Dimension 0 is divided among the ranks; if it does not divide, the first ranks
        get one more row.

    Examples:
        >>> hvd.reducescatter(np.array([[1.0, 2.0], [3.0, 4.0]]), op=hvd.Sum)  # one rank gets all rows
        array([[1., 2.],
               [3., 4.]])
    """
    return verbs.reduce_scatter(
        np.asarray(tensor), resolve_op(op), name, prescale_factor, postscale_factor, process_set
    ).result()


@documented
def reducescatter_async(
    tensor: Array[S] | Plain,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[Array[S]]:
    """Starts a reducescatter, and returns without waiting for the other ranks.

    Returns:
        The handle for `poll` and `synchronize`, which returns this rank's rows in a new array.

    Examples:
        >>> hvd.synchronize(hvd.reducescatter_async(np.array([1.0, 2.0])))
        array([1., 2.])
    """
    return handles.add(
        verbs.reduce_scatter(np.asarray(tensor), resolve_op(op), name, prescale_factor, postscale_factor, process_set)
    )


@documented
def grouped_reducescatter(
    tensors: Sequence[Array[S] | Plain],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Array[S]]:
    """Does a reducescatter of several arrays as one unit: if one of them fails, all fail.

    Returns:
        For each array, this rank's rows of the reduction.

    Examples:
        >>> hvd.grouped_reducescatter([np.array([1.0]), np.array([2.0, 3.0])])
        [array([1.]), array([2., 3.])]
    """
    arrays = [np.asarray(tensor) for tensor in tensors]
    return verbs.grouped_reduce_scatter(
        arrays, resolve_op(op), name, prescale_factor, postscale_factor, process_set
    ).result()


@documented
def grouped_reducescatter_async(
    tensors: Sequence[Array[S] | Plain],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[list[Array[S]]]:
    """Starts a reducescatter of several arrays as one unit, and returns without waiting for the other ranks.

    Returns:
        The handle for `poll` and `synchronize`, which returns this rank's rows for each array.

    Examples:
        >>> hvd.synchronize(hvd.grouped_reducescatter_async([np.array([1.0]), np.array([2.0, 3.0])]))
        [array([1.]), array([2., 3.])]
    """
    arrays = [np.asarray(tensor) for tensor in tensors]
    return handles.add(
        verbs.grouped_reduce_scatter(arrays, resolve_op(op), name, prescale_factor, postscale_factor, process_set)
    )


__all__ = [
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "reducescatter",
    "reducescatter_async",
]
