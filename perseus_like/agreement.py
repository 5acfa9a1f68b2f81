"""The agreement of ranks on their gradients: the same parameters, one order of arrival, one name."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .collectives import Collectives, Op
from .errors import DisagreementError
from .objects import allgather_object, first_difference
from .process_sets import ProcessSet
from .session import session
from .tensor import ArrayTensors


@dataclass(frozen=True)
class Agreement:
    """The common knowledge of the ranks of a process set about their gradients."""

    order: list[int]  # the order of arrival on the first rank; empty if that rank had joined
    sparse: dict[int, int]  # for each gradient that is sparse on some rank: the number of its sparse dimensions
    complete: bool  # no rank was missing because it had joined


class Agreeing:
    """Agrees on the gradients by two small allreduces. The zeros that a joined rank contributes do no harm.

    The first allreduce compares digests: they are equal if their mean square is the square of their mean. If they are
    equal, the second one exchanges lists, whose length is the number of gradients.
    """

    _PIECES = 8

    def __init__(
        self,
        name: str,
        descriptions: Sequence[str],
        order: Sequence[int],
        sparse: dict[int, int],
        process_set: ProcessSet,
    ) -> None:
        self._name = name
        self._descriptions = list(descriptions)
        self._process_set = process_set
        self._count = len(descriptions)
        self._body = np.zeros(2 * self._count, np.int64)
        if process_set.rank() == 0:
            self._body[: len(order)] = np.array(order, np.int64) + 1
        for index, dimensions in sparse.items():
            self._body[self._count + index] = dimensions

    def settle(self) -> Agreement:
        """Blocks until all ranks have agreed. DisagreementError, the same on all ranks, if their parameters differ."""
        digest = hashlib.blake2b("\n".join(self._descriptions).encode(), digest_size=2 * self._PIECES).digest()
        pieces = np.frombuffer(digest, np.uint16).astype(np.int64)
        head = self._reduce(np.concatenate([[1], pieces, pieces * pieces]), Op.Sum, "digest")
        present = int(head[0])
        sums, squares = head[1 : 1 + self._PIECES], head[1 + self._PIECES :]
        complete = present == self._process_set.size()
        if not np.array_equal(present * squares, sums * sums):
            raise DisagreementError(
                self._difference()
                if complete
                else "ranks have different parameters to optimize; build the same model on all ranks"
            )
        body = self._reduce(self._body, Op.Max, "order").tolist()
        order = [number - 1 for number in body[: self._count] if number > 0]
        sparse = {index: dimensions for index, dimensions in enumerate(body[self._count :]) if dimensions > 0}
        return Agreement(order, sparse, complete)

    def _reduce(self, values: np.ndarray[Any, Any], op: Op, what: str) -> np.ndarray[Any, Any]:
        return _arrays.allreduce(values, op, f"{self._name}.{what}", process_set=self._process_set).result()

    def _difference(self) -> str:
        everybody: list[list[str]] = allgather_object(self._descriptions, self._name, self._process_set)
        found = first_difference(everybody, self._process_set)
        if found is None:
            return "ranks optimize different parameters"
        return (
            f"ranks optimize different parameters: at position {found}; "
            "build the same model and wrap it in the same way on all ranks"
        )


_arrays: Collectives[np.ndarray[Any, Any]] = Collectives(ArrayTensors())
_reserved: dict[int, int] = {}
session.on_start(_reserved.clear)


def reserve_name(process_set: ProcessSet) -> str:
    """Returns a name for one optimizer's gradients.

    It is the same on all ranks if they create optimizers in the same order.
    """
    set_id = process_set.require_id()
    number = _reserved.get(set_id, 0)
    _reserved[set_id] = number + 1
    return f"gradients.{number}"
