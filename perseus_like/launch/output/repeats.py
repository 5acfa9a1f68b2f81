"""Tracebacks that several ranks print: the first is printed at once, and equal ones of other ranks become one line.

Only lines that repeat a traceback of another rank are held back. They are printed after all, unless their process is
known to have failed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ..binding import ranges
from ..processes.first_failure import TRACEBACK

INTERRUPT = b"KeyboardInterrupt: "  # replaces the traceback, see `report_failures`
HOLD_SECONDS = 3.0  # a process that has imported torch needs a second or two for its end on a busy machine
_MOST_BLOCKS, _MOST_LINES = 64, 500
_FRESH_SECONDS = 10.0  # an older traceback is too far away on the screen


class Source(Protocol):
    """The stderr of a rank."""

    @property
    def number(self) -> int:
        """The number that is in front of its lines."""

    def write(self, line: bytes) -> None:
        """Prints a line."""

    def has_failed(self) -> bool:
        """Returns True once it is known that the process ends with a failure."""


@dataclass
class _Block:
    """The lines of a source from the beginning of a traceback on."""

    source: Source
    lines: list[bytes]
    since: float = field(default_factory=time.monotonic)  # the time of the last line
    is_folded: bool = False
    copies: list[int] = field(default_factory=list)  # the sources whose equal lines are not printed

    def may_be_repeated_by(self, other: _Block) -> bool:
        """Returns True if the lines are equal as far as both have come.

        The other may be ahead only in the middle of a traceback, whose lines are indented up to the error.
        """
        if len(other.lines) > len(self.lines):
            is_inside = other.lines[-1].startswith(b" ") or other.lines[-2].startswith(b" ")
            if other.is_folded or not is_inside:
                return False
        return all(mine == others for mine, others in zip(self.lines, other.lines, strict=False))


class Repeats:
    """Takes all lines of all ranks' stderr. `announce` prints a line of the launcher."""

    def __init__(self, announce: Callable[[str], None]) -> None:
        self._announce = announce
        self._printed: deque[_Block] = deque(maxlen=_MOST_BLOCKS)
        self._held: dict[int, _Block] = {}

    def is_holding(self, source: Source | None = None) -> bool:
        """Returns True if lines of `source`, or of any rank, are held back."""
        blocks = self._held.values() if source is None else filter(None, [self._held.get(source.number)])
        return any(not block.is_folded for block in blocks)

    def take(self, source: Source, line: bytes) -> None:
        """Prints a line, or holds it back."""
        if block := self._held.get(source.number):
            block.lines.append(line)
            block.since = time.monotonic()
            if len(block.lines) > _MOST_LINES or not self._leaders(block):
                self.release(source)
                if block.is_folded:
                    source.write(line)
            return
        for printed in self._printed:
            if printed.source is source and len(printed.lines) < _MOST_LINES:
                printed.lines.append(line)
                printed.since = time.monotonic()
        if line == TRACEBACK or line.startswith(INTERRUPT):
            block = _Block(source, [line])
            if self._leaders(block):
                self._held[source.number] = block
                return
            self._printed.append(block)
        source.write(line)

    def release(self, source: Source) -> None:
        """Prints what is held back of a source. A traceback that was folded is not."""
        if block := self._held.pop(source.number, None):
            for line in [] if block.is_folded else block.lines:
                source.write(line)
            self._printed.append(block)

    def decide(self, source: Source | None = None) -> None:
        """Decides about lines that were held back long enough, and about all those of `source`."""
        now = time.monotonic()
        for block in [block for block in self._held.values() if not block.is_folded]:
            if block.source is source or now > block.since + HOLD_SECONDS:
                leaders = [each for each in self._leaders(block) if len(each.lines) >= len(block.lines)]
                if leaders and block.source.has_failed():
                    block.is_folded = True
                    leaders[0].copies.append(block.source.number)
                else:
                    self.release(block.source)
        if not self.is_holding():
            for leader in self._printed:
                if leader.copies:
                    numbers = ranges(sorted(set(leader.copies)))
                    self._announce(f"[{numbers}]: the same traceback as [{leader.source.number}]")
                    leader.copies.clear()

    def _leaders(self, block: _Block) -> list[_Block]:
        """Returns the printed tracebacks of which this one may be a repetition."""
        oldest = block.since - _FRESH_SECONDS
        return [
            each
            for each in self._printed
            if each.source is not block.source and each.since > oldest and each.may_be_repeated_by(block)
        ]
