"""horovod.common.process_sets."""

from ..process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from .basics import MPI, HorovodBasics
from .util import is_iterable

__all__ = [
    "MPI",
    "HorovodBasics",
    "ProcessSet",
    "add_process_set",
    "global_process_set",
    "is_iterable",
    "remove_process_set",
]
