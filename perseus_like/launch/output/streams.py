"""The output of a job's processes, from their pipes to the launcher's screen."""

from __future__ import annotations

import functools
import os
import subprocess
from typing import IO

from ..processes.child import Feed
from ..processes.event_loop import EventLoop
from . import BAR_SECONDS, Channel, Screen, Sink

_PROMPT_SECONDS = 0.1
_MOST_BACKLOG = 1 << 20
_MOST_IN_PIPE = 1 << 20  # Linux's limit for the users' pipes (/proc/sys/fs/pipe-max-size)


class ChildStreams:
    """Reads what children write, and writes the screen's backlog, as far as this is possible without blocking."""

    def __init__(self, loop: EventLoop, screen: Screen) -> None:
        self._loop = loop
        self._screen = screen
        self._feeds: dict[int, Feed] = {}
        self._streams: dict[int, IO[bytes]] = {}
        self._stderr_of: dict[int, tuple[int, Channel]] = {}  # by the stdout of the same process
        self._is_listening = True

    def add(self, process: subprocess.Popen[bytes], out: Feed, err: Feed) -> None:
        """Passes on the stdout and stderr of `process`."""
        for stream, feed in ((process.stdout, out), (process.stderr, err)):
            assert stream is not None
            descriptor = stream.fileno()
            os.set_blocking(descriptor, False)
            self._feeds[descriptor] = feed
            self._streams[descriptor] = stream
            self._listen(descriptor)
        if process.stdout and process.stderr and isinstance(err, Channel):
            self._stderr_of[process.stdout.fileno()] = process.stderr.fileno(), err

    @property
    def longest_wait(self) -> float | None:
        """Returns the seconds after which an incomplete line, such as a prompt, is shown, or a held one; or None."""
        if self._screen.is_holding or any(sink.is_terminal for sink in self._screen.sinks):
            return _PROMPT_SECONDS
        return BAR_SECONDS if self._screen.has_late_bars else None

    def update(self) -> None:
        """Makes the loop wait for what can make progress now. Call it before each wait."""
        for sink in self._screen.sinks:
            is_watched = self._loop.watches(sink.descriptor)
            if sink.backlog and not is_watched:
                self._loop.watch(sink.descriptor, functools.partial(_flush, sink), is_output=True)
            elif not sink.backlog and is_watched:
                self._loop.forget(sink.descriptor)
        # The output of ranks is not read while the reader of the launcher's output is slow.
        is_listening = self._screen.backlog < _MOST_BACKLOG
        if is_listening != self._is_listening:
            self._is_listening = is_listening
            for descriptor in self._feeds:
                if is_listening:
                    self._listen(descriptor)
                else:
                    self._loop.forget(descriptor)

    def read_rest(self, process: subprocess.Popen[bytes]) -> None:
        """Reads the remaining output of a process, so that the output precedes the report of the process's end."""
        for stream in (process.stdout, process.stderr):
            self._read_present(stream.fileno() if stream and not stream.closed else -1)

    def close(self, process: subprocess.Popen[bytes]) -> None:
        """Closes the streams of a process that has ended, although others may still hold them open."""
        for stream in (process.stdout, process.stderr):
            if stream and not stream.closed:
                self._forget(stream.fileno())

    def drain(self) -> None:
        """Reads what is left, and closes all streams and the screen."""
        for descriptor in list(self._feeds):
            self._read_present(descriptor)
            if descriptor in self._feeds:
                self._forget(descriptor)
        self._screen.close()

    def _read_present(self, descriptor: int) -> None:
        """Reads what is in the pipe now. A process that a rank has left may go on writing, without an end."""
        received = 0
        while received < _MOST_IN_PIPE and (count := self._read(descriptor)):
            received += count

    def _listen(self, descriptor: int) -> None:
        self._loop.watch(descriptor, functools.partial(self._read, descriptor))

    def _read(self, descriptor: int) -> int:
        """Passes on output of a child. Returns the number of bytes; 0 at the end, or if there is none now."""
        data = self._take(descriptor)
        if data is None:
            return 0
        other, channel = self._stderr_of.get(descriptor, (-1, None))
        before = self._take(other) if data and channel else None
        # A line after the end of a bar belongs below it. The end is already in the pipe.
        is_bar = bool(before and channel and (channel.has_bar or b"\r" in before))
        pieces = [(other, before), (descriptor, data)] if is_bar else [(descriptor, data), (other, before)]
        for source, piece in pieces:
            if piece:
                self._feeds[source].feed(piece)
            elif piece is not None:
                self._forget(source)
        return len(data)

    def _take(self, descriptor: int) -> bytes | None:
        """Reads output of a child: nothing at the end, None if there is none now."""
        if descriptor not in self._feeds:
            return None
        try:
            return os.read(descriptor, 65536)
        except BlockingIOError:
            return None

    def _forget(self, descriptor: int) -> None:
        self._feeds.pop(descriptor).finish()
        self._stderr_of.pop(descriptor, None)
        if self._loop.watches(descriptor):
            self._loop.forget(descriptor)
        self._streams.pop(descriptor).close()


def _flush(sink: Sink) -> None:
    if sink.backlog:
        sink.flush_some()
