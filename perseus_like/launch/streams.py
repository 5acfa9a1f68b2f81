"""The output of a job's processes, from their pipes to the launcher's screen."""

from __future__ import annotations

import functools
import os
import subprocess
from typing import IO

from .child import Feed
from .event_loop import EventLoop
from .output import Screen, Sink

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

    @property
    def longest_wait(self) -> float | None:
        """Returns the seconds after which an incomplete line, such as a prompt, is shown, or a held one; or None."""
        waits = self._screen.is_holding or any(sink.is_terminal for sink in self._screen.sinks)
        return _PROMPT_SECONDS if waits else None

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
        if descriptor not in self._feeds:
            return 0
        try:
            data = os.read(descriptor, 65536)
        except BlockingIOError:
            return 0
        if data:
            self._feeds[descriptor].feed(data)
        else:
            self._forget(descriptor)
        return len(data)

    def _forget(self, descriptor: int) -> None:
        self._feeds.pop(descriptor).finish()
        if self._loop.watches(descriptor):
            self._loop.forget(descriptor)
        self._streams.pop(descriptor).close()


def _flush(sink: Sink) -> None:
    if sink.backlog:
        sink.flush_some()
