"""Variables that have `numpy()` and `assign(value)`: read, written, and sent from one rank to all.

Their values travel as bytes, so that every type does, also those that nobody can add up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from .collectives import Collectives
from .errors import DisagreementError
from .handle import results_of
from .objects import allgather_object, first_difference
from .process_sets import ProcessSet, global_process_set
from .session import session
from .tensor import ArrayTensors

Array = np.ndarray[Any, Any]

_bytes: Collectives[Array] = Collectives(ArrayTensors())


def read(variables: Sequence[Any]) -> list[Array]:
    """Copies of the values."""
    return [np.array(variable.numpy()) for variable in variables]


def write(variables: Sequence[Any], values: Sequence[Array]) -> None:
    """Where there are more variables than values, those at the end stay as they are."""
    for variable, value in zip(variables, values, strict=False):
        variable.assign(value)


def from_root(
    values: Sequence[Array], root_rank: int, what: str, process_set: ProcessSet = global_process_set
) -> list[Array]:
    """Root's values on every rank. DisagreementError, the same on all ranks, when they differ in number or kind.

    `what` they are, for names and error texts: "weights".
    """
    _compare([f"{value.dtype}{list(value.shape)}" for value in values], what, process_set)
    arrays = [np.ascontiguousarray(value) for value in values]
    started = [
        _bytes.broadcast(array.reshape(-1).view(np.uint8), root_rank, f"{what}.{place}", process_set, in_place=True)
        for place, array in enumerate(arrays)
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
    """Root's values into the variables of all ranks. `access`: what has another `read` and `write` than this module."""
    take, put = (read, write) if access is None else (access.read, access.write)
    values = from_root(take(variables), root_rank, what, process_set)
    if session.core.rank() != root_rank:
        put(variables, values)


def _compare(descriptions: list[str], what: str, process_set: ProcessSet) -> None:
    digest = hashlib.blake2b("\n".join(descriptions).encode(), digest_size=16).digest()
    mine = np.frombuffer(digest, np.uint8)
    everybody = _bytes.allgather(mine, f"{what}.digest", process_set).result().reshape(-1, len(mine))
    if (everybody == everybody[0]).all():
        return
    found = first_difference(allgather_object(descriptions, what, process_set), process_set)
    raise DisagreementError(f"ranks have different {what}: at place {found}; build the same model on all ranks")


def of_optimizer(optimizer: Any, trained: Sequence[Any]) -> list[Any]:
    """All variables of an optimizer of the `trained` ones. What comes with its first step is made now, so that all
    ranks have the same, whoever has stepped or loaded a checkpoint. The learning rate is one of them, though Keras 2
    does not list it.
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
