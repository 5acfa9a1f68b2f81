"""Keeps the committed state of an elastic job in one host's memory, while the workers there are replaced.

Started on each host by its path, with nothing but the standard library: `python -IS agent.py SOCKET SECONDS`. It speaks
with the launcher over its standard input and output, and with the workers of its host over an abstract Unix socket, in
lines of JSON (`messages.py`). State comes and goes as a descriptor of anonymous memory. The agent ends, and the state
with it, when its input ends or says nothing for so many seconds.

    launcher                                       agent
    ping                                        →
                                                ←  pong: which state it keeps
    hosts: handed to all workers                →
                                                ←  begun, died, leaving: of a worker of a rank and generation
    worker
    begun, leaving                              →
    park: a version, and the memory             →
    take                                        →
                                                ←  parked: the version, and the memory; null without one
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import struct
import sys
import time
from typing import Any

_LONGEST_LINE = 1 << 16


class Agent:
    """One thread, one loop."""

    def __init__(self, name: str, seconds: float) -> None:
        self._seconds = seconds
        self._heard = time.monotonic()
        self._version: list[int] | None = None
        self._memory = -1
        self._pending = b""
        self._workers: dict[int, Worker] = {}
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind("\0" + name)
        self._listener.listen()
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        os.set_blocking(0, False)
        self._selector.register(0, selectors.EVENT_READ, self._read_launcher)

    def run(self) -> None:
        """Until the launcher is gone."""
        while (left := self._heard + self._seconds - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                key.data()

    def _read_launcher(self) -> None:
        data = os.read(0, _LONGEST_LINE)
        if not data:
            sys.exit(0)
        self._heard = time.monotonic()
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if message["kind"] == "ping":
                tell(1, "pong", version=self._version)
            elif message["kind"] == "hosts":
                for worker in self._workers.values():
                    worker.say(line + b"\n")

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if uid != os.geteuid():
                connection.close()
                return
            worker = Worker(connection)
            self._workers[connection.fileno()] = worker
            self._selector.register(connection, selectors.EVENT_READ, lambda: self._listen(worker))

    def _listen(self, worker: Worker) -> None:
        messages = worker.heard()
        for message in messages or []:
            self._hear(worker, message)
        if messages is None:
            del self._workers[worker.connection.fileno()]
            self._selector.unregister(worker.connection)
            worker.close()
            if worker.rank is not None and not worker.is_leaving:
                tell(1, "died", rank=worker.rank, generation=worker.generation)

    def _hear(self, worker: Worker, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "begun":
            worker.rank, worker.generation = message["rank"], message["generation"]
            tell(1, "begun", rank=worker.rank, generation=worker.generation)
        elif kind == "leaving":
            worker.is_leaving = True
            tell(1, "leaving", rank=worker.rank, generation=worker.generation, why=message["why"])
        elif kind == "park" and worker.memory:
            memory = worker.memory.pop(0)
            if self._version is None or message["version"] > self._version:
                self._memory, memory = memory, self._memory
                self._version = message["version"]
            if memory != -1:
                os.close(memory)
        elif kind == "take":
            worker.say(encode("parked", version=self._version), [] if self._version is None else [self._memory])


class Worker:
    """The connection of one process that trains."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.rank: int | None = None
        self.generation = 0
        self.is_leaving = False
        self.memory: list[int] = []
        self._pending = b""

    def heard(self) -> list[dict[str, Any]] | None:
        """What it says; None once it has closed its end."""
        try:
            data, memory, _, _ = socket.recv_fds(self.connection, _LONGEST_LINE, 4)
        except OSError:
            return None
        self.memory += memory
        if not data:
            return None
        *lines, self._pending = (self._pending + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def say(self, line: bytes, memory: list[int] | None = None) -> None:
        """Who does not listen misses it."""
        with contextlib.suppress(OSError):
            socket.send_fds(self.connection, [line], memory or [], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def close(self) -> None:
        self.connection.close()
        for descriptor in self.memory:
            os.close(descriptor)


def encode(kind: str, **content: Any) -> bytes:
    """As `messages.encode`, which cannot be imported here."""
    return json.dumps({"kind": kind, **content}).encode() + b"\n"


def tell(descriptor: int, kind: str, **content: Any) -> None:
    """A line for the launcher; without one there is nothing left to do."""
    try:
        os.write(descriptor, encode(kind, **content))
    except OSError:
        sys.exit(0)


if __name__ == "__main__":
    for signum in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # the launcher says when it is over
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(0))
    agent = Agent(sys.argv[1], float(sys.argv[2]))
    tell(1, "here", host=os.uname().nodename)
    agent.run()
