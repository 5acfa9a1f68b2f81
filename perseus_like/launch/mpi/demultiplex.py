"""Sorts the mixed output of an mpirun by rank."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol


class Taker(Protocol):
    """Takes bytes: a channel of one rank."""

    def feed(self, data: bytes) -> None:
        """The next bytes."""


ChannelOf = Callable[[int | None], Taker]


class HydraOutput:
    """Hydra puts a mark before each piece that it has read from a rank, in the middle of lines, too."""

    def __init__(self, tag: str, channel_of: ChannelOf) -> None:
        self._mark = re.compile(rb"<" + tag.encode() + rb" ([0-9]+)>")
        self._longest = len(f"<{tag} 4294967295>")
        self._opening = f"<{tag}"[: self._longest].encode()
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
        tail = max(start, len(self._pending) - self._longest)
        candidate = self._pending.find(b"<", tail)
        while candidate != -1:
            rest = self._pending[candidate:]
            if rest.startswith(self._opening) or self._opening.startswith(rest):
                return candidate
            candidate = self._pending.find(b"<", candidate + 1)
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


class OpenMpiOutput:
    """Open MPI writes whole lines, each with `[job,rank]<stream>:` in front."""

    _TAG = re.compile(rb"\[[0-9]+,([0-9]+)\]<std(?:out|err|diag)>: ?")

    def __init__(self, channel_of: ChannelOf) -> None:
        self._channel_of = channel_of
        self._pending = b""

    def feed(self, data: bytes) -> None:
        """The next bytes from mpirun."""
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            self._give(line + b"\n")

    def _give(self, line: bytes) -> None:
        tag = self._TAG.match(line)
        if tag:
            self._channel_of(int(tag[1])).feed(line[tag.end() :])
        else:
            self._channel_of(None).feed(line)

    def finish(self) -> None:
        """The stream has ended."""
        if self._pending:
            self._give(self._pending)
            self._pending = b""
