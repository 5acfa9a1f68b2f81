"""Separates the mixed output of an mpirun by rank.

An mpirun prints a mark with the rank before each line of a rank, and before each piece of a line that it has read.
Pieces of several ranks may therefore be in one line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Protocol


class Taker(Protocol):
    """Takes bytes: a channel of one rank."""

    def feed(self, data: bytes) -> None:
        """Takes the next bytes."""


ChannelOf = Callable[[int | None], Taker]


class MarkedOutput:
    """One stream of an mpirun. Text without a mark comes from mpirun itself: rank None."""

    def __init__(self, opening: bytes, closings: Sequence[bytes], channel_of: ChannelOf) -> None:
        """Stores the pattern of marks: `opening`, the rank in digits, and one of `closings`."""
        self._opening = opening
        self._closings = closings
        self._mark = re.compile(re.escape(opening) + rb"([0-9]+)(?:" + b"|".join(map(re.escape, closings)) + rb")")
        self._channel_of = channel_of
        self._rank: int | None = None
        self._pending = b""

    def feed(self, data: bytes) -> None:
        """Takes the next bytes from mpirun."""
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
        """Returns the index where an incomplete mark begins, or the end of the text if there is none."""
        candidate = self._pending.find(self._opening[:1], max(start, len(self._pending) - _LONGEST_MARK))
        while candidate != -1:
            if self._may_become_mark(self._pending[candidate:]):
                return candidate
            candidate = self._pending.find(self._opening[:1], candidate + 1)
        return len(self._pending)

    def _may_become_mark(self, text: bytes) -> bool:
        """Returns True if more bytes can complete `text` to a mark.

        A rank's status line (`rank_main`) begins like a mark of Hydra, and it must not wait for more output.
        """
        if len(text) <= len(self._opening):
            return self._opening.startswith(text)
        if not text.startswith(self._opening):
            return False
        rest = text[len(self._opening) :]
        tail = rest.lstrip(b"0123456789")
        return not tail or (len(tail) < len(rest) and any(closing.startswith(tail) for closing in self._closings))

    def _give(self, text: bytes) -> None:
        # Each line of a rank has a mark, so a line without a mark is mpirun's own.
        line, newline, own = text.partition(b"\n")
        if line or newline:
            self._channel_of(self._rank).feed(line + newline)
        if newline:
            self._rank = None
        if own:
            self._channel_of(None).feed(own)

    def finish(self) -> None:
        """Passes on the rest of the stream, which has ended."""
        self._give(self._pending)
        self._pending = b""


_LONGEST_MARK = 96


def hydra_output(tag: str, channel_of: ChannelOf) -> MarkedOutput:
    """Returns a reader of output with Hydra's marks, which have the pattern `<tag %r>`."""
    return MarkedOutput(f"<{tag} ".encode(), [b">"], channel_of)


def open_mpi_output(after: str, channel_of: ChannelOf) -> MarkedOutput:
    """Returns a reader of output with Open MPI's marks, `[1,RANK]<stdout>:`. Version 5 writes a blank `after` them."""
    closings = [f"]<{stream}>:{after}".encode() for stream in ("stdout", "stderr", "stddiag")]
    return MarkedOutput(b"[1,", closings, channel_of)
