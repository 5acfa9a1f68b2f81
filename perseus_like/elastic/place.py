"""A worker's place in a generation of an elastic job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """Without an `exchange`, rank and size are known to the launcher that started the process, and -1 here."""

    generation: int
    sync: bool  # some member has no state, or another one
    rank: int = -1
    size: int = -1
    exchange: Callable[[bytes], list[bytes]] | None = None
    called_off: int = -1  # a descriptor that becomes readable when another member has ended

    @property
    def meeting(self) -> tuple[int, int, Callable[[bytes], list[bytes]]] | None:
        """As `session.start` wants it."""
        return None if self.exchange is None else (self.rank, self.size, self.exchange)
