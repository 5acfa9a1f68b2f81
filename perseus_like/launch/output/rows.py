"""The bottom rows of a terminal: the unfinished line of each rank, such as a progress bar, below the finished lines."""

from __future__ import annotations

import os
import re
import unicodedata

_UP, _ERASE = b"\x1b[A", b"\x1b[K"
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b.?")
_ESCAPE_BYTES = re.compile(rb"\x1b\[[0-9;?]*[A-LSTf]")
_RESET = "\x1b[0m"
Owner = tuple[int, str]  # a rank and its stream, in the order of the rows


class Rows:
    """Returns the bytes that change the rows. Between two calls, the cursor is at the end of the last row.

    If there are more rows than fit into half of the terminal, the first ones are shown.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rows: dict[Owner, bytes] = {}
        self._drawn = 0

    def write_line(self, owner: Owner, line: bytes) -> bytes:
        """Writes a finished line above the rows. It replaces the owner's row."""
        self._rows.pop(owner, None)
        if not self._drawn:
            return line + b"\n"
        start = self._top(_ERASE)
        return start + (_ESCAPE_BYTES.sub(b"", line) if self._rows else line) + b"\n" + self._draw()

    def update(self, owner: Owner, text: bytes) -> bytes:
        """Changes the owner's row."""
        if self._rows.get(owner) == text:
            return b""
        start = self._top()
        self._rows[owner] = text
        return start + self._draw()

    def remove(self, owner: Owner) -> bytes:
        """Removes the owner's row, if there is one."""
        if self._rows.pop(owner, None) is None:
            return b""
        return self._top(_ERASE) + self._draw()

    def _top(self, erase: bytes = b"") -> bytes:
        """Returns the way to the start of the first row. It erases row by row: tmux keeps a screen that is erased."""
        return b"\r" + (erase + _UP) * (self._drawn - 1) + erase if self._drawn else b""

    def _draw(self) -> bytes:
        columns, lines = terminal_size(self._descriptor)
        shown = [self._rows[owner] for owner in sorted(self._rows)][: max(1, lines // 2)]
        self._drawn = len(shown)
        return b"\n".join(_cut(text, columns - 1) + _ERASE for text in shown)


def terminal_size(descriptor: int) -> tuple[int, int]:
    """Returns the columns and lines of a terminal; 80 and 24 if it does not tell them."""
    try:
        columns, lines = os.get_terminal_size(descriptor)
    except OSError:
        return 80, 24
    return columns or 80, lines or 24


def _cut(text: bytes, columns: int) -> bytes:
    """Returns the part of a text that fits, without control characters, except for those of colours."""
    kept = []
    rest = columns
    has_colour = False
    decoded = text.decode(errors="replace")
    position = 0
    while position < len(decoded) and rest >= 0:
        if escape := _ESCAPE.match(decoded, position):
            position = escape.end()
            if escape[0].endswith("m"):
                kept.append(escape[0])
                has_colour = True
            continue
        width = _width(decoded[position])
        if width <= rest:
            kept.append(decoded[position] if decoded[position].isprintable() else "")
        rest -= width
        position += 1
    return ("".join(kept) + (_RESET if has_colour else "")).encode()


def _width(character: str) -> int:
    if not character.isprintable() or unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
