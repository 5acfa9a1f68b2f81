"""The output of ranks: whole lines with the rank as prefix, progress bars that stay in place, a file per rank.

Nothing here blocks: bytes wait in a `Sink` until the launcher's event loop finds its descriptor writable.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from .log_file import LogFile
from .repeats import Repeats
from .rows import Owner, Rows

if TYPE_CHECKING:
    from ..command_line import Options

_LINE_END = re.compile(rb"\r\n|\n|\r(?=[\s\S])")  # a final \r may be half of \r\n
_LONGEST_LINE = 1 << 20
NAMES = ("stdout", "stderr")
BAR_SECONDS = 5.0  # in a file, the time between two states of a progress bar
_RANK_COLOURS = (b"36", b"33", b"35", b"32", b"34", b"96")
_BOLD, _BOLD_RED = b"1", b"1;31"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Sink:
    """One of the launcher's own outputs, or both if they are the same terminal or file."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.is_terminal = os.isatty(descriptor)
        # https://no-color.org; a "dumb" terminal knows no escape sequences.
        self._rows = Rows(descriptor) if self.is_terminal and os.environ.get("TERM") != "dumb" else None
        self.has_colours = self._rows is not None and not os.environ.get("NO_COLOR")
        self.is_broken = False
        self._waiting = bytearray()
        self._open: Channel | None = None  # the channel of the unfinished line that is the last on the screen
        self._open_text = b""
        # In a file, when a bar was written last, and its state if it has changed since then.
        self._bars: dict[Channel, tuple[float, bytes | None]] = {}
        self.has_lost = False  # since the last line that says so
        self.report_loss: Callable[[], None] | None = None  # called at the first loss

    @property
    def backlog(self) -> int:
        """The number of bytes that are not yet written."""
        return len(self._waiting)

    def write_line(self, channel: Channel, text: bytes) -> None:
        """Writes a finished line. Rows of other channels move below it."""
        self._bars.pop(channel, None)
        if self._rows:
            self._put(self._rows.write_line(channel.owner, channel.prefix() + text))
        elif self._open is channel:
            self._put(b"\r" + channel.prefix() + text + b"\n")
            self._open = None
        else:
            self.close_line()
            self._put(channel.prefix() + text + b"\n")

    def update_line(self, channel: Channel, text: bytes) -> None:
        """Writes a line that will be overwritten (a progress bar) or completed (a prompt). A blank text removes it.

        In a file, the states of a bar within BAR_SECONDS are one, which is the last.
        """
        if self._rows:
            row = channel.prefix() + text
            self._put(self._rows.update(channel.owner, row) if text.strip() else self._rows.remove(channel.owner))
            return
        if not self.is_terminal:
            written, _ = self._bars.get(channel, (-BAR_SECONDS, None))
            if not text.strip() and channel in self._bars and self._open is not channel:
                self._bars.pop(channel, None)
                return
            if text.strip() and time.monotonic() < written + BAR_SECONDS:
                self._bars[channel] = written, text
                return
            self._bars[channel] = time.monotonic(), None
        self._write_open(channel, text)

    @property
    def has_late_bars(self) -> bool:
        """True if `write_late_bars` will write something."""
        return any(text is not None for _, text in self._bars.values())

    def write_late_bars(self) -> None:
        """Writes the last states of bars that have waited for BAR_SECONDS."""
        for channel, (written, text) in list(self._bars.items()):
            if text is not None and time.monotonic() >= written + BAR_SECONDS:
                self.update_line(channel, text)

    def _write_open(self, channel: Channel, text: bytes) -> None:
        if self._open is not channel:
            self.close_line()
            self._put(channel.prefix() + text)
        elif self._open_text != text:
            self._put(b"\r" + channel.prefix() + text)
        self._open, self._open_text = channel, text

    def remove_line(self, channel: Channel, blanks: bytes) -> None:
        """Removes the progress bar of a channel. `blanks` overwrite it where it is the last line of a file."""
        if self._rows or self._open is channel:
            self.update_line(channel, blanks)

    def close_line(self) -> None:
        """Ends an unfinished line, if there is one."""
        if self._open:
            self._put(b"\n")
            self._open = None

    def coloured(self, text: bytes, colour: bytes) -> bytes:
        """Returns `text` in a colour, or as it is if this is no terminal with colours."""
        return b"\x1b[" + colour + b"m" + text + b"\x1b[0m" if text and self.has_colours else text

    def _put(self, data: bytes) -> None:
        if self.has_lost:
            self._waiting += b"\nperseusrun: output is missing here, since the disk was full\n"
            self.has_lost = False
        if not self.is_broken:
            self._waiting += data

    def close(self) -> None:
        """Ends an unfinished line, and says that output is missing if it is."""
        self.close_line()
        if self.has_lost:
            self._put(b"")

    def flush_some(self) -> None:
        """Writes as much as a writable descriptor takes without blocking."""
        try:
            # A pipe that is writable has room for this much (POSIX's PIPE_BUF).
            written = os.write(self.descriptor, self._waiting[:4096])
        except BlockingIOError:
            return
        except OSError as error:
            # A full disk does not end the job. The output is lost until there is room again.
            self.has_lost = error.errno in _FULL
            self.is_broken = not self.has_lost
            self._waiting.clear()
            if self.has_lost and self.report_loss:
                report, self.report_loss = self.report_loss, None
                report()
            return
        del self._waiting[:written]


class Filter(Protocol):
    """Removes parts of a stream."""

    def pass_on(self, data: bytes) -> bytes:
        """Takes the next bytes and returns the part of the stream that can be passed on."""

    def rest(self) -> bytes:
        """Returns the bytes that were held back, at the stream's end."""

    def has_failed(self) -> bool:
        """Returns True once it is known that the process ends with a failure."""


class Channel:
    """The stdout or stderr of one rank, which is split into lines."""

    def __init__(
        self,
        rank: int | None,
        name: str,
        sink: Sink,
        style: Style,
        copy: LogFile | None = None,
        stream_filter: Filter | None = None,
        repeats: Repeats | None = None,
    ) -> None:
        self._filter = stream_filter
        self._repeats = repeats if stream_filter else None
        tag = b"" if rank is None or not style.prefix else f"[{rank}]<{name}>:".encode()
        self.owner: Owner = (-1 if rank is None else rank, name)
        self._tag = sink.coloured(tag, _RANK_COLOURS[(rank or 0) % len(_RANK_COLOURS)])
        self._stamp = style.timestamp
        self.sink = sink
        self._copy = copy
        self._pending = b""
        self._is_bar = False  # a carriage return has ended the last text of this line

    def prefix(self) -> bytes:
        """Returns the prefix of each line."""
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
            self._is_bar = end[0] == b"\r"
            if not self._is_bar:
                self._write_line(text)
            elif text:
                self._update_line(text)
        self._pending = self._pending[start:]
        if len(self._pending) > _LONGEST_LINE:
            self._end_line()

    def show_pending(self) -> None:
        """On a terminal, shows the beginning of a line whose end has not come yet, such as a prompt."""
        if self._pending and self.sink.is_terminal and not (self._repeats and self._repeats.is_holding(self)):
            self._update_line(self._pending.rstrip(b"\r"))

    @property
    def has_bar(self) -> bool:
        """True while the last line is a progress bar that goes on."""
        return self._is_bar

    @property
    def number(self) -> int:
        """The rank, or the number of a worker of an elastic job."""
        return self.owner[0]

    def write(self, line: bytes) -> None:
        """Writes a finished line."""
        self.sink.write_line(self, line)

    def has_failed(self) -> bool:
        """Returns True once it is known that the process ends with a failure."""
        return self._filter is not None and self._filter.has_failed()

    def _write_line(self, text: bytes) -> None:
        if self._repeats:
            self._repeats.take(self, text)
        else:
            self.write(text)

    def _update_line(self, text: bytes) -> None:
        if self._repeats:
            self._repeats.release(self)
        self.sink.update_line(self, text)

    def finish(self) -> None:
        """Writes the rest of the stream, which has ended, as its last line."""
        if self._filter:
            self._take(self._filter.rest())
        self._end_line()

    def _end_line(self) -> None:
        if text := self._pending.rstrip(b"\r"):
            if self._is_bar and text.isspace():
                self.sink.remove_line(self, text)
            else:
                self._write_line(text)
        self._pending, self._is_bar = b"", False

    def close(self) -> None:
        """Finishes the stream and closes its file."""
        self.finish()
        if self._repeats:
            self._repeats.decide(self)
        if self._copy is not None:
            self._copy.close()


class Style(NamedTuple):
    """The format of lines, and the folder of the copies. If `folds` is true, equal tracebacks are printed once.

    If `appends` is true, the copies keep what they have.
    """

    prefix: bool = True
    timestamp: bool = False
    directory: str | None = None
    folds: bool = True
    appends: bool = False

    @classmethod
    def of(cls, options: Options) -> Style:
        """Returns the style that the options of `perseusrun` ask for."""
        return cls(
            options.prefix_output,
            options.prefix_timestamp,
            options.output_filename,
            not options.full_tracebacks,
            options.restart > 0,
        )


class Screen:
    """The launcher's outputs, and the channels of all ranks that lead there."""

    def __init__(self, style: Style, size: int) -> None:
        self._style = style
        self.size = size
        self._digits = len(str(max(size - 1, 0)))
        out = Sink(1)
        self._sinks = (out, out if _same_file(1, 2) else Sink(2))
        self.sinks = list(dict.fromkeys(self._sinks))
        self.channels: list[Channel] = []
        self._own = Channel(None, "stderr", self._sinks[1], Style(prefix=False))
        self._repeats = Repeats(self.announce) if style.folds else None
        for name, sink, other in zip(NAMES, self._sinks, reversed(self._sinks), strict=True):
            if sink is not other:
                sink.report_loss = functools.partial(self._report_loss, name, other)

    def channel(self, rank: int | None, name: str, stream_filter: Filter | None = None) -> Channel:
        """Returns a new channel for one stream of a rank. The rank is None for a process that is no rank."""
        path = None if rank is None else self.log_of(rank, name)
        copy = LogFile(Path(path), self.announce, self._style.appends) if path else None
        sink = self._sinks[NAMES.index(name)]
        channel = Channel(rank, name, sink, self._style, copy, stream_filter, self._repeats)
        self.channels.append(channel)
        return channel

    def log_of(self, rank: int, name: str) -> str | None:
        """Returns the path of the file with a copy of one stream of a rank; None without such files."""
        folder = self._style.directory
        return str(Path(folder) / f"rank.{rank:0{self._digits}}" / name) if folder else None

    def announce(self, text: str, details: Sequence[str] = (), is_failure: bool = False) -> None:
        """Writes a line of the launcher itself to its stderr, and indented lines with details below it.

        Names of files may have bytes that are no text; these are shown as Python writes them.
        """
        sink = self._own.sink
        head = sink.coloured(b"perseusrun:", _BOLD_RED if is_failure else _BOLD)
        sink.write_line(self._own, head + b" " + text.encode(errors="backslashreplace"))
        for line in details:
            sink.write_line(self._own, b"  " + line.encode(errors="backslashreplace"))

    def _report_loss(self, name: str, other: Sink) -> None:
        text = f"the disk of the launcher's {name} is full: output is lost there, and the job continues"
        other.write_line(self._own, f"perseusrun: {text}".encode())

    @property
    def has_lost_in_silence(self) -> bool:
        """True if output is lost, and no output says so."""
        return all(sink.has_lost for sink in self.sinks)

    @property
    def backlog(self) -> int:
        """The number of bytes that are not yet written."""
        return sum(sink.backlog for sink in self.sinks)

    @property
    def is_broken(self) -> bool:
        """True once the reader of the standard output has closed it."""
        return self._sinks[0].is_broken

    @property
    def is_on_terminal(self) -> bool:
        """True if the launcher's own lines appear on a terminal."""
        return self._sinks[1].is_terminal

    @property
    def is_holding(self) -> bool:
        """True while lines are held back that `write_delayed` will write, or fold."""
        return self._repeats is not None and self._repeats.is_holding()

    @property
    def has_late_bars(self) -> bool:
        """See `Sink.has_late_bars`."""
        return any(sink.has_late_bars for sink in self.sinks)

    def write_delayed(self) -> None:
        """See `Repeats.decide` and `Sink.write_late_bars`."""
        if self._repeats:
            self._repeats.decide()
        for sink in self.sinks:
            sink.write_late_bars()

    def show_pending(self) -> None:
        """See `Channel.show_pending`."""
        for channel in self.channels:
            channel.show_pending()

    def close(self) -> None:
        """Ends all channels and passes the rest of their streams to the sinks."""
        for channel in self.channels:
            channel.close()
        for sink in self.sinks:
            sink.close()


def _same_file(one: int, other: int) -> bool:
    with contextlib.suppress(OSError):
        first, second = os.fstat(one), os.fstat(other)
        return stat.S_IFMT(first.st_mode) == stat.S_IFMT(second.st_mode) and os.path.samestat(first, second)
    return False
