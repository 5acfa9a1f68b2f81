"""The collectives that reduce, in MXNet's engine: allreduce and reducescatter. A trailing underscore means in place."""

from __future__ import annotations

from collections.abc import Sequence

from perseus_like.collectives.arguments import group_wire, member_id, scattered_rows
from perseus_like.collectives.automatic_names import names
from perseus_like.operations import Adasum, Average, Op, Sum, reduce_options, resolve_op
from perseus_like.process_sets import ProcessSet, global_process_set
from perseus_like.tables import DType, Verb

from .engine import documented_for_engine, push
from .tensors import Array, checked, new_array, new_like, number_of


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


@documented_for_engine
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

    Examples:
        >>> hvd.allreduce(mx.nd.array([1.0, 2.0]), op=hvd.Sum, name="loss").asnumpy()  # by hvd.size() ranks
        array([1., 2.], dtype=float32)
    """
    output = new_like([tensor])
    chosen = resolve_op(op, average)
    reduce("allreduce", [tensor], output, chosen, name, prescale_factor, postscale_factor, process_set, priority)
    return output[0]


@documented_for_engine
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

    Examples:
        >>> array = mx.nd.array([1.0, 2.0])
        >>> hvd.allreduce_(array, op=hvd.Sum) is array
        True
    """
    chosen = resolve_op(op, average)
    reduce("allreduce", [tensor], [tensor], chosen, name, prescale_factor, postscale_factor, process_set, priority)
    return tensor


@documented_for_engine
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

    Examples:
        >>> [each.asnumpy().tolist() for each in hvd.grouped_allreduce([mx.nd.array([1.0]), mx.nd.array([2.0, 3.0])])]
        [[1.0], [2.0, 3.0]]
    """
    if not tensors:
        return tensors
    outputs = new_like(tensors)
    chosen = resolve_op(op, average)
    factors = (prescale_factor, postscale_factor)
    reduce("grouped_allreduce", tensors, outputs, chosen, name, *factors, process_set, priority)
    return outputs


@documented_for_engine
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


@documented_for_engine
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

    Examples:
        >>> hvd.reducescatter(mx.nd.array([1.0, 2.0]), op=hvd.Sum).asnumpy()  # one rank gets all rows
        array([1., 2.], dtype=float32)
    """
    factors = (prescale_factor, postscale_factor)
    return _reduce_scatter("reducescatter", [tensor], op, name, priority, process_set, *factors)[0]


@documented_for_engine
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
    "allreduce",
    "allreduce_",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "reducescatter",
]
