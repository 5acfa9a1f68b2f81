"""Variables that have `numpy()` and `assign(value)`: read, written, and broadcast from one rank.

The values are sent as bytes, so that every dtype can be sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..collectives import Collectives
from ..collectives.handle import results_of
from ..errors import DisagreementError
from ..objects import difference_between_ranks
from ..process_sets import ProcessSet, global_process_set
from ..session import session
from ..tensor import ArrayTensors

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
else:
    from ..tensor import np

_bytes: Collectives[Array] = Collectives(ArrayTensors())


def read(variables: Sequence[Any]) -> list[Array]:
    """Returns copies of the values."""
    return [np.array(variable.numpy()) for variable in variables]


def write(variables: Sequence[Any], values: Sequence[Array]) -> None:
    """Assigns the values. If there are more variables than values, the last variables keep their values."""
    for variable, value in zip(variables, values, strict=False):
        variable.assign(value)


def from_root(
    values: Sequence[Array], root_rank: int, what: str, process_set: ProcessSet = global_process_set
) -> list[Array]:
    """Returns the root's values on every rank.

    `what` names the variables in request names and error texts, for example "weights".
    DisagreementError, the same on all ranks, if the ranks have different numbers, dtypes or shapes of variables.
    """
    found = difference_between_ranks([f"{value.dtype}{list(value.shape)}" for value in values], what, process_set)
    if found is not None:
        raise DisagreementError(f"ranks have different {what}: at position {found}; build the same model on all ranks")
    arrays = [np.ascontiguousarray(value) for value in values]
    started = [
        _bytes.broadcast(array.reshape(-1).view(np.uint8), root_rank, f"{what}.{number}", process_set, in_place=True)
        for number, array in enumerate(arrays)
    ]
    results_of(started)
    return [array.reshape(value.shape) for array, value in zip(arrays, values, strict=True)]


def broadcast(
    variables: Sequence[Any],
    root_rank: int,
    what: str,
    process_set: ProcessSet = global_process_set,
    access: Any = None,
) -> None:
    """Writes the root's values into the variables of all ranks.

    `access` is an object with `read` and `write` that are used instead of this module's.
    """
    take, put = (read, write) if access is None else (access.read, access.write)
    values = from_root(take(variables), root_rank, what, process_set)
    if session.core.rank() != root_rank:
        put(variables, values)


def of_optimizer(optimizer: Any, trained: Sequence[Any]) -> list[Any]:
    """Returns all variables of an optimizer that trains `trained`.

    Variables that an optimizer creates at its first step are created now, so that all ranks have the same ones even if
    only some have stepped or loaded a checkpoint. The learning rate is included, though Keras 2 does not list it.
    """
    if optimizer is None:
        return []
    make = getattr(optimizer, "build", None) or getattr(optimizer, "_create_all_weights", None)
    if make is not None and trained and not getattr(optimizer, "built", False):
        make(list(trained))
    listed = optimizer.variables
    found = list(listed() if callable(listed) else listed)
    rate = getattr(optimizer, "learning_rate", None)
    is_listed = any(rate is each for each in found)
    return [*found, rate] if hasattr(rate, "assign") and not is_listed else found
