"""The collectives on MXNet's arrays. Each returns an array that MXNet's engine fills in when all ranks have called it.

`priority` goes to MXNet's engine; it rarely has an effect, because the engine starts a collective as soon as its arrays
are ready. Wrong arguments raise an error at the call. Errors that only the other ranks or the engine can know are
raised when a program waits for the result.
"""

from .data_movement import *
from .reductions import *

__all__ = [
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "reducescatter",
]
