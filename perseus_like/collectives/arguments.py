"""The rules of a collective's arguments, which all frameworks share: process sets, roots, splits and groups."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from ..process_sets import GLOBAL, ProcessSet, global_process_set
from ..session import session
from ..tables import DType
from ..tensor import AS_IT_IS
from .compression import wire_dtype


def member_id(process_set: ProcessSet) -> int:
    """Returns the core's id of a set. ValueError if it is not registered, or if this rank is not in it."""
    if process_set is global_process_set:
        return GLOBAL
    number = process_set.require_id()
    if not process_set.included():
        raise ValueError(
            f"rank {session.core.rank()} is not in {process_set} and cannot take part in its collectives; call them "
            "only on ranks of the set"
        )
    return number


def root_within(root_rank: int, process_set: ProcessSet) -> int:
    """Returns the root's rank within the set, given its rank in the job. ValueError if it is not in the set."""
    if process_set.process_set_id != GLOBAL:
        return process_set.rank_within(root_rank)
    if not 0 <= root_rank < session.core.size():
        raise ValueError(f"root_rank is {root_rank}, but ranks go from 0 to {session.core.size() - 1}")
    return root_rank


def checked_splits(splits: Sequence[int] | None, rows: int, process_set: ProcessSet) -> list[int] | None:
    """Returns the rows for each rank as integers. ValueError if they do not fit the set or the tensor."""
    count = process_set.size() or 1
    if splits is None:
        if rows % count:
            raise ValueError(f"alltoall without splits: {rows} rows do not divide among {count} ranks; pass splits")
        return None
    try:
        plain = [operator.index(split) for split in splits]
    except TypeError:
        raise ValueError(f"alltoall: splits must be whole numbers, not {splits}") from None
    if len(plain) != count:
        raise ValueError(f"alltoall: {len(plain)} splits for {count} ranks; pass one split for each rank")
    if min(plain) < 0:
        raise ValueError(f"alltoall: splits {plain} must not be negative")
    if sum(plain) > rows:
        raise ValueError(f"alltoall: splits {plain} add up to {sum(plain)} rows, but the tensor has {rows}")
    return plain


def group_wire(verb: str, dtypes: Sequence[int], wire: DType | None) -> int:
    """Returns the core's `wire_dtype` for the tensors of one request. ValueError if it differs between them."""
    if wire is None:
        return AS_IT_IS
    kinds = {wire_dtype(wire, dtype) for dtype in dtypes}
    if len(kinds) > 1:
        raise ValueError(f"{verb} with compression: the tensors must all be float32 or float64, or none of them")
    return kinds.pop()


def scattered_rows(rows: int, process_set: ProcessSet) -> int:
    """Returns the number of rows that a reduce-scatter returns to this rank. The first ranks share the remainder."""
    each, more = divmod(rows, process_set.size() or 1)
    return each + ((process_set.rank() or 0) < more)
