"""Sorts the mixed output of an mpirun by rank.

An mpirun puts a mark with the rank before each line of a rank and before each piece of a line that it has read, so
that pieces of several ranks may stand in one line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol


class Taker(Protocol):
    """Takes bytes: a channel of one rank."""

    def feed(self, data: bytes) -> None:
        """The next bytes."""


ChannelOf = Callable[[int | None], Taker]


class MarkedOutput:
    """One stream of an mpirun. What has no mark is of mpirun itself: rank None."""

    def __init__(self, opening: bytes, closing: bytes, channel_of: ChannelOf) -> None:
        """A mark is `opening`, the rank in digits, and a text that the regular expression `closing` matches."""
        self._opening = opening
        self._mark = re.compile(re.escape(opening) + rb"([0-9]+)" + closing)
        self._channel_of = channel_of
        self._rank: int | None = None
        self._pending = b""

    def feed(self, data: bytes) -> None:
        """The next bytes from mpirun."""
        self._pending += data
        start = 0
        for mark in self._mark.finditer(self._pending):
            self._give(self._pending[start : mark.start()])
            self._rank = int(mark[1])
            start = mark.end()
        end = self._safe_end(start)
        self._give(self._pending[start:end])
        self._pending = self._pending[end:]

    def _safe_end(self, start: int) -> int:
        """Where a mark may have begun whose end has not come yet."""
        candidate = self._pending.find(self._opening[:1], max(start, len(self._pending) - _LONGEST_MARK))
        while candidate != -1:
            rest = self._pending[candidate:]
            if rest.startswith(self._opening) or self._opening.startswith(rest):
                return candidate
            candidate = self._pending.find(self._opening[:1], candidate + 1)
        return len(self._pending)

    def _give(self, text: bytes) -> None:
        # Each line of a rank has its mark: what begins after a line's end is of mpirun itself.
        line, newline, own = text.partition(b"\n")
        if line or newline:
            self._channel_of(self._rank).feed(line + newline)
        if newline:
            self._rank = None
        if own:
            self._channel_of(None).feed(own)

    def finish(self) -> None:
        """The stream has ended."""
        self._give(self._pending)
        self._pending = b""


_LONGEST_MARK = 96


def hydra_output(tag: str, channel_of: ChannelOf) -> MarkedOutput:
    """For the pattern `<tag %r>`."""
    return MarkedOutput(f"<{tag} ".encode(), rb">", channel_of)


def open_mpi_output(after: str, channel_of: ChannelOf) -> MarkedOutput:
    """For `[1,RANK]<stdout>:`; version 5 writes a blank `after` it."""
    return MarkedOutput(b"[1,", rb"\]<std(?:out|err|diag)>:" + after.encode(), channel_of)
