"""Sums of gradients over the backward passes of a step that has not been made yet, as a part of elastic states.

Each rank has sums of its own, so they cannot come from one rank like the values of variables. After a change of the
ranks, every rank continues with the mean of the sums, so the mean or the sum over the same number of ranks is the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..collectives import Collectives, Op
from ..collectives.handle import results_of
from ..objects import allgather_object
from ..tensor import ArrayTensors

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
else:
    from ..tensor import np

_arrays: Collectives[Array] = Collectives(ArrayTensors())
Places = tuple[int, ...]  # the places of some variables in a list of variables


@dataclass(frozen=True)
class Sums:
    """The sums of one list of variables. A variable without a gradient so far has None."""

    passes: int
    values: list[Any]


Kept = Mapping[Places, Sums]


class PartialSums(ABC):
    """The sums of one optimizer, which sums gradients over several backward passes."""

    @abstractmethod
    def read(self, variables: Sequence[Any]) -> Kept:
        """Returns copies of the sums that no step has used yet, by the places of their variables in `variables`."""

    @abstractmethod
    def write(self, variables: Sequence[Any], kept: Kept) -> None:
        """Replaces all sums by those of an earlier `read`, which may be of another rank."""


def partial_sums_of(optimizer: Any) -> PartialSums | None:
    """Returns the sums of a DistributedOptimizer, which another optimizer may wrap. None if each pass is a step."""
    while optimizer is not None:
        found = getattr(optimizer, "_agg_helper", None)
        if isinstance(found, PartialSums):
            return found
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return None


def places_in(variables: Sequence[Any], some: Sequence[Any]) -> Places | None:
    """Returns the places of `some` variables in `variables`. None if a variable is not among them."""
    places = {id(variable): place for place, variable in enumerate(variables)}
    found = [places.get(id(variable)) for variable in some]
    return None if None in found else tuple(place for place in found if place is not None)


def mean_over_ranks(kept: Kept, name: str) -> Kept:
    """Returns the means of the sums of all ranks that have made as many passes as rank 0. Collective."""
    described = {
        places: (each.passes, [None if value is None else (tuple(value.shape), value.dtype) for value in each.values])
        for places, each in kept.items()
    }
    everybody = allgather_object(described, name)
    means: dict[Places, Sums] = {}
    for number, (places, (passes, _)) in enumerate(sorted(everybody[0].items())):
        having = [each[places][1] for each in everybody if places in each and each[places][0] == passes]
        kinds = [next((kind for kind in of_all if kind is not None), None) for of_all in zip(*having, strict=True)]
        takes_part = places in kept and kept[places].passes == passes
        mine = kept[places].values if takes_part else [None] * len(kinds)
        means[places] = Sums(passes, _means(mine, kinds, len(having), f"{name}.{number}"))
    return means


def _means(mine: list[Any], kinds: list[Any], ranks: int, name: str) -> list[Any]:
    """Returns the means of arrays over `ranks` ranks. An array that is missing on one of them counts as zeros."""
    started = []
    for place, (value, kind) in enumerate(zip(mine, kinds, strict=True)):
        if kind is not None:
            shape, dtype = kind
            wide = np.float64 if np.dtype(dtype).itemsize > 4 else np.float32  # sums of 16-bit floats lose digits
            array = np.zeros(shape, wide) if value is None else np.asarray(value).astype(wide)
            started.append(_arrays.allreduce(np.asarray(array / ranks), Op.Sum, f"{name}.{place}"))
    results = iter(results_of(started))
    return [None if kind is None else next(results).reshape(kind[0]).astype(kind[1]) for kind in kinds]
