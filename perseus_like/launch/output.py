"""What ranks print: whole lines with the rank in front, progress bars that stay bars, a file per rank.

Nothing here blocks: bytes wait in a `Sink` until the launcher's event loop finds its descriptor writable.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from .errors import LaunchError

_LINE_END = re.compile(rb"\r\n|\n|\r(?=[\s\S])")  # a final \r may be half of \r\n
_LONGEST_LINE = 1 << 20
_ERASE = b"\x1b[K"
NAMES = ("stdout", "stderr")
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Sink:
    """One of the launcher's own outputs (both of them where they are the same terminal or file)."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.is_terminal = os.isatty(descriptor)
        self.is_broken = False
        self._waiting = bytearray()
        self._open: Channel | None = None  # whose unfinished line is the last on the screen
        self._open_text = b""
        self._has_lost = False

    @property
    def backlog(self) -> int:
        """Bytes not yet written."""
        return len(self._waiting)

    def write_line(self, channel: Channel, text: bytes) -> None:
        """A finished line. A progress bar of another channel is moved out of its way."""
        if self._open is channel:
            self._put(b"\r" + channel.prefix() + text + (_ERASE if self.is_terminal else b"") + b"\n")
            self._open = None
        elif self._open and self.is_terminal:
            self._put(b"\r" + _ERASE + channel.prefix() + text + b"\n" + self._open.prefix() + self._open_text)
        else:
            self.close_line()
            self._put(channel.prefix() + text + b"\n")

    def update_line(self, channel: Channel, text: bytes) -> None:
        """A line that is going to be overwritten (a progress bar), or that waits to be completed (a prompt)."""
        if self._open is channel and self._open_text == text:
            return
        if self.is_terminal:
            self._put(b"\r" + channel.prefix() + text + _ERASE)
        elif self._open is channel:
            self._put(b"\r" + channel.prefix() + text)
        else:
            self.close_line()
            self._put(channel.prefix() + text)
        self._open, self._open_text = channel, text

    def close_line(self) -> None:
        """Ends an unfinished line, if there is one."""
        if self._open:
            self._put(b"\n")
            self._open = None

    def _put(self, data: bytes) -> None:
        if self._has_lost:
            self._waiting += b"\nperseusrun: output is missing here: there was no room for it\n"
            self._has_lost = False
        if not self.is_broken:
            self._waiting += data

    def flush_some(self) -> None:
        """Writes as much as a writable descriptor takes without blocking."""
        try:
            # A pipe that is writable has room for this much (POSIX's PIPE_BUF).
            written = os.write(self.descriptor, self._waiting[:4096])
        except BlockingIOError:
            return
        except OSError as error:
            # A full disk ends no job: what is said meanwhile is lost.
            self._has_lost = error.errno in _FULL
            self.is_broken = not self._has_lost
            self._waiting.clear()
            return
        del self._waiting[:written]


class Filter(Protocol):
    """Takes something out of a stream."""

    def pass_on(self, data: bytes) -> bytes:
        """What of the stream so far can be passed on."""

    def rest(self) -> bytes:
        """What was held back, at the stream's end."""


class Copy:
    """A file that holds what a rank says on one stream, up to where the disk is full."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        """Raises LaunchError where the file cannot be made; later faults are told to `say`."""
        self._path, self._say = path, say
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise LaunchError(f"--output-filename: cannot write {str(path)!r}: {error.strerror}") from error

    def write(self, data: bytes) -> None:
        """Adds this, unless the file could not be written to before."""
        view = memoryview(data)
        try:
            while view and self._file >= 0:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            self.close()
            self._say(f"--output-filename: {str(self._path)!r} ends here: {error.strerror}; the job goes on")

    def close(self) -> None:
        """May be called again."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


class Channel:
    """The stdout or stderr of one rank: cuts what arrives into lines."""

    def __init__(
        self,
        rank: int | None,
        name: str,
        sink: Sink,
        style: Style,
        copy: Copy | None = None,
        stream_filter: Filter | None = None,
    ) -> None:
        self._filter = stream_filter
        self._tag = b"" if rank is None or not style.prefix else f"[{rank}]<{name}>:".encode()
        self._stamp = style.timestamp
        self.sink = sink
        self._copy = copy
        self._pending = b""

    def prefix(self) -> bytes:
        """What stands in front of each line."""
        return time.strftime("%Y-%m-%d %H:%M:%S ").encode() + self._tag if self._stamp else self._tag

    def feed(self, data: bytes) -> None:
        """Takes the next bytes of the stream."""
        self._take(self._filter.pass_on(data) if self._filter else data)

    def _take(self, data: bytes) -> None:
        if self._copy is not None:
            self._copy.write(data)
        self._pending += data
        start = 0
        for end in _LINE_END.finditer(self._pending):
            text = self._pending[start : end.start()]
            start = end.end()
            if end[0] != b"\r":
                self.sink.write_line(self, text)
            elif text:
                self.sink.update_line(self, text)
        self._pending = self._pending[start:]
        if len(self._pending) > _LONGEST_LINE:
            self._end_line()

    def show_pending(self) -> None:
        """On a terminal, shows the beginning of a line whose end has not come yet, such as a prompt."""
        if self._pending and self.sink.is_terminal:
            self.sink.update_line(self, self._pending.rstrip(b"\r"))

    def finish(self) -> None:
        """The stream has ended: what is left is its last line."""
        if self._filter:
            self._take(self._filter.rest())
        self._end_line()

    def _end_line(self) -> None:
        if self._pending:
            self.sink.write_line(self, self._pending.rstrip(b"\r"))
            self._pending = b""

    def close(self) -> None:
        """Finishes the stream and closes its file."""
        self.finish()
        if self._copy is not None:
            self._copy.close()


class Style:
    """How lines are marked, and where copies go."""

    def __init__(self, prefix: bool = True, timestamp: bool = False, directory: str | None = None) -> None:
        self.prefix = prefix
        self.timestamp = timestamp
        self.directory = directory


class Screen:
    """The launcher's outputs, and the channels of all ranks that lead there."""

    def __init__(self, style: Style, size: int) -> None:
        self._style = style
        self._digits = len(str(max(size - 1, 0)))
        out = Sink(1)
        self._sinks = (out, out if _same_file(1, 2) else Sink(2))
        self.sinks = list(dict.fromkeys(self._sinks))
        self.channels: list[Channel] = []
        self._own = Channel(None, "stderr", self._sinks[1], Style(prefix=False))

    def channel(self, rank: int | None, name: str, stream_filter: Filter | None = None) -> Channel:
        """A new channel for one stream of a rank; None is for a process that is no rank."""
        copy = None if rank is None or not self._style.directory else self._copy_of(rank, name)
        channel = Channel(rank, name, self._sinks[NAMES.index(name)], self._style, copy, stream_filter)
        self.channels.append(channel)
        return channel

    def _copy_of(self, rank: int, name: str) -> Copy:
        return Copy(Path(self._style.directory or "") / f"rank.{rank:0{self._digits}}" / name, self.say)

    def say(self, text: str) -> None:
        """A line of the launcher itself, on its stderr."""
        self._own.sink.write_line(self._own, f"perseusrun: {text}".encode())

    @property
    def backlog(self) -> int:
        """Bytes not yet written."""
        return sum(sink.backlog for sink in self.sinks)

    @property
    def is_broken(self) -> bool:
        """True once nobody reads the standard output any more."""
        return self._sinks[0].is_broken

    def show_pending(self) -> None:
        """See `Channel.show_pending`."""
        for channel in self.channels:
            channel.show_pending()

    def close(self) -> None:
        """Ends all channels; what they held is in the sinks."""
        for channel in self.channels:
            channel.close()
        for sink in self.sinks:
            sink.close_line()


def _same_file(one: int, other: int) -> bool:
    with contextlib.suppress(OSError):
        first, second = os.fstat(one), os.fstat(other)
        return stat.S_IFMT(first.st_mode) == stat.S_IFMT(second.st_mode) and os.path.samestat(first, second)
    return False
