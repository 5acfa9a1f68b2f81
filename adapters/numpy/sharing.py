"""Read-only arrays of which each host has one copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from perseus_like.docstrings import documented_as
from perseus_like.host_memory.sharing import share

T = TypeVar("T")


@documented_as(share)
def shared(make: Callable[[], T], name: str) -> T:
    """Returns the object that `make` returns on one rank of each host, in memory that its ranks share.

    The first rank of each host calls `make`. The other ranks of the host map the arrays that it returns, so that the
    host has one copy of them. The arrays are read-only on all ranks. The call is collective over all ranks of the job.

    Args:
        make: a function without arguments that returns an array, or an object that contains arrays and can be pickled,
            such as a dictionary. An array of `np.load(…, mmap_mode="r")` is copied once, from the file to the memory.

    Examples:
        >>> table = hvd.shared(lambda: np.arange(4.0), "table")
        >>> table.flags.writeable
        False
    """
    return share(make, name)
