"""horovod.common.process_sets."""

from __future__ import annotations

from typing import Any

from ..process_set_registration import add_process_set
from ..process_sets import ProcessSet, global_process_set, remove_process_set
from .basics import MPI, HorovodBasics
from .util import is_iterable

_basics = HorovodBasics(__file__)


def _setup(basics: Any) -> None:
    """Does nothing. In Horovod, each adapter passes its own compiled library; here all frameworks share one."""


def _temp_process_set_object(process_set_id: int) -> ProcessSet:
    """Returns a ProcessSet of the registered set `process_set_id`."""
    process_set = ProcessSet(_basics._get_process_set_ids_and_ranks()[process_set_id])
    process_set.process_set_id = process_set_id
    return process_set


__all__ = [
    "MPI",
    "HorovodBasics",
    "ProcessSet",
    "add_process_set",
    "global_process_set",
    "is_iterable",
    "remove_process_set",
]
