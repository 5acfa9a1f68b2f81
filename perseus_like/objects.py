"""Collectives on Python objects, which are pickled. A rank unpickles objects of ranks of its own job only."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, overload

from .collectives import Collectives, Sum
from .collectives.arguments import root_within
from .docstrings import documented
from .process_sets import ProcessSet, global_process_set
from .session import session
from .tensor import ArrayTensors

if TYPE_CHECKING:
    import numpy as np
else:
    from .tensor import np

T = TypeVar("T")

_bytes: Collectives[np.ndarray[Any, Any]] = Collectives(ArrayTensors())


@overload
def broadcast_object(
    obj: None, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any: ...
@overload
def broadcast_object(
    obj: T | None, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> T: ...
@documented
def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Returns the root's object on every rank. It is pickled; only ranks of the same job can send such objects.

    Returns:
        On `root_rank` the object itself, on other ranks a copy.

    Examples:
        >>> hvd.broadcast_object({"epoch": 3}, root_rank=0)
        {'epoch': 3}
    """
    root_within(root_rank, process_set)
    is_root = session.core.rank() == root_rank
    # An allgather to which only root contributes needs no message about the size.
    mine, error = _pickled(obj) if is_root else (b"", None)
    gathered = _gather(mine, "broadcast_object", name, process_set)
    if error is not None:
        raise error
    return obj if is_root else _load(gathered, root_rank)


@documented
def allgather_object(obj: T, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[T]:
    """Returns every rank's object. They are pickled; only ranks of the same job can send such objects.

    Returns:
        The objects in the order of ranks. This rank's own object is a copy, too.

    Examples:
        >>> hvd.allgather_object({"rank": hvd.rank()})
        [{'rank': 0}]
    """
    mine, error = _pickled(obj)
    gathered = _gather(mine, "allgather_object", name, process_set)
    if error is not None:
        raise error
    # A pickle marks its own end.
    return [_load(gathered, rank) for rank in process_set.ranks or [0]]


def objects_of_present_ranks(obj: T, name: str, process_set: ProcessSet) -> dict[int, T]:
    """Returns the objects of the ranks that have not joined, by rank. Collective; joined ranks contribute zeros."""
    mine, ranks = np.frombuffer(pickle.dumps(obj), np.uint8), process_set.ranks or [0]
    place = process_set.rank()
    assert place is not None
    lengths = np.zeros(len(ranks), np.int64)
    lengths[place] = len(mine)
    lengths = _bytes.allreduce(lengths, Sum, f"{name}.lengths", process_set=process_set).result()
    ends = lengths.cumsum()
    data = np.zeros(ends[-1], np.uint8)
    data[ends[place] - len(mine) : ends[place]] = mine
    gathered = _bytes.allreduce(data, Sum, name, process_set=process_set).result()
    pieces = zip(ranks, np.split(gathered, ends[:-1]), strict=True)
    return {rank: pickle.loads(piece.tobytes()) for rank, piece in pieces if len(piece)}


def first_difference(lists: Mapping[int, Sequence[str]]) -> str | None:
    """Describes the first difference between the lists of ranks. None if they are equal.

    The text starts with the position in the lists.
    """
    (first_rank, first), *_ = lists.items()
    for rank, theirs in lists.items():
        for position in range(max(len(first), len(theirs))):
            one = first[position] if position < len(first) else "nothing"
            other = theirs[position] if position < len(theirs) else "nothing"
            if one != other:
                return f"{position}, rank {first_rank} has {one}, rank {rank} has {other}"
    return None


def difference_between_ranks(
    mine: Sequence[str], name: str, process_set: ProcessSet = global_process_set
) -> str | None:
    """Describes the first difference between the lists of all ranks, as `first_difference`. Collective.

    Equal lists cost an allgather of 16 bytes for each rank.
    """
    digest = np.frombuffer(hashlib.blake2b("\n".join(mine).encode(), digest_size=16).digest(), np.uint8)
    everybody = _bytes.allgather(digest, f"{name}.digest", process_set).result().reshape(-1, len(digest))
    if (everybody == everybody[0]).all():
        return None
    lists = allgather_object(list(mine), name, process_set)
    return first_difference(dict(zip(process_set.ranks or [0], lists, strict=True)))


@dataclass(frozen=True)
class _Unsent:
    """Stands for an object that could not be pickled, so that the other ranks do not wait for it."""

    reason: str


def _pickled(obj: Any) -> tuple[bytes, Exception | None]:
    try:
        try:
            return pickle.dumps(obj, pickle.HIGHEST_PROTOCOL), None
        except Exception:  # pickle raises exceptions of many classes
            import cloudpickle  # pickles lambdas, and objects defined in a function or at the prompt

            return cloudpickle.dumps(obj, pickle.HIGHEST_PROTOCOL), None
    except Exception as error:
        return pickle.dumps(_Unsent(f"{type(error).__name__}: {error}")), error


def _load(gathered: io.BytesIO, rank: int) -> Any:
    obj = pickle.load(gathered)
    if isinstance(obj, _Unsent):
        raise ValueError(f"rank {rank} could not pickle its object: {obj.reason}; pass an object that can be pickled")
    return obj


def _gather(mine: bytes, what: str, name: str | None, process_set: ProcessSet) -> io.BytesIO:
    array = np.frombuffer(mine, np.uint8)
    return io.BytesIO(
        _bytes.allgather(array, what if name is None else f"{what}.{name}", process_set).result().tobytes()
    )
