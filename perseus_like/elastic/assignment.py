"""A worker's assignment in one generation of an elastic job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Assignment:
    """The rank and what `session.start` needs.

    Without an `exchange`, MPI assigns rank and size: they are -1 until the session has started.
    """

    generation: int
    sync: bool  # some member has no state, or a different one
    rank: int = -1
    size: int = -1
    exchange: Callable[[bytes], list[bytes]] | None = None
    called_off: int = -1  # a descriptor that becomes readable when another member has ended

    @property
    def rendezvous(self) -> tuple[int, int, Callable[[bytes], list[bytes]]] | None:
        """The `meeting` parameter of `session.start`."""
        return None if self.exchange is None else (self.rank, self.size, self.exchange)
