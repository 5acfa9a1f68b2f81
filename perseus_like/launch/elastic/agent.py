"""The state agent: keeps the committed state of an elastic job in one host's memory while the workers are replaced.

The launcher starts it on each host by its path, with nothing but the standard library: `python -IS agent.py SECONDS`.
The agent ends, and the state with it, when its standard input ends or is silent for so many seconds.

Messages are lines of JSON (`messages.py`). Each line to the launcher begins with a mark, since a remote shell may print
other lines. Workers connect to an abstract Unix socket, whose name follows from the secret. Both ends check that the
other one belongs to the same user and knows the secret (`authentication.py`). State is passed as a descriptor of
anonymous memory, which is sealed.

    launcher                                       agent
    hello: the secret                           →
                                                ←  here
    ping                                        →
                                                ←  pong: the version of the state that it keeps
    pause: the launcher is about to be stopped  →  (waits without a limit for the next message)
    hosts: passed on to workers that have begun →
                                                ←  begun, died, leaving: of a worker of a rank and generation
    worker
    begun, leaving                              →
    store: version and size, with the memory    →
    take                                        →
                                                ←  stored: version and size, with the memory; null without a state
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from ...protocol.agent_protocol import MARK, check_memory, socket_names
    from ...protocol.authentication import AuthenticatedListener
    from ...protocol.messages import Message, Reader, encode
else:
    sys.path.append(str(Path(__file__).resolve().parents[2] / "protocol"))
    from agent_protocol import MARK, check_memory, socket_names
    from authentication import AuthenticatedListener
    from messages import Message, Reader, encode

_BLOCK = 1 << 16
_MOST_DESCRIPTORS = 4  # the descriptors that a worker may send ahead of their messages
# Other processes may connect at the same time as the workers of this host.
_EXPECTED_WORKERS = 64
# Exceptions that a message with unexpected content can raise: int(Infinity) is an OverflowError.
_INVALID = (ArithmeticError, LookupError, TypeError, ValueError)


class Agent:
    """The state agent of one host: one thread with one event loop."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadline: float | None = time.monotonic() + seconds  # for the launcher's next message
        self._version: list[int] | None = None
        self._size = 0
        self._memory = -1
        self._reader = Reader()
        self._workers: dict[int, Worker] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ, self._read_launcher)

    def run(self) -> None:
        """Serves the launcher and the workers until the launcher is gone."""
        while (left := self._seconds_left()) is None or left > 0:
            for key, _ in self._selector.select(left):
                key.data()

    def _seconds_left(self) -> float | None:
        return None if self._deadline is None else self._deadline - time.monotonic()

    def _read_launcher(self) -> None:
        data = os.read(0, _BLOCK)
        if not data:
            sys.exit(0)
        for message in self._reader.take(data):
            self._deadline = time.monotonic() + self._seconds
            kind = message["kind"]
            if kind == "hello":
                self._listen_at(socket_names(message["secret"]), message["secret"])
                send("here")
            elif kind == "ping":
                send("pong", version=self._version)
            elif kind == "pause":
                self._deadline = None
            elif kind == "hosts":
                for worker in self._workers.values():
                    if worker.rank is not None:  # other connections wait for the state
                        worker.send(encode(**message))

    def _listen_at(self, names: Iterable[str], secret: str) -> None:
        """Listens at the first name that is free."""
        server = socket.socket(socket.AF_UNIX)
        for name in names:
            with contextlib.suppress(OSError):
                server.bind(name)
                break
        else:
            sys.exit("the state agent cannot listen: all its socket names on this host are in use")
        server.listen(socket.SOMAXCONN)
        listener = AuthenticatedListener([server], secret, expected=_EXPECTED_WORKERS)
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener))

    def _accept(self, listener: AuthenticatedListener) -> None:
        for connection in listener.accept():
            self._serve(Worker(connection))

    def _serve(self, worker: Worker) -> None:
        self._workers[worker.connection.fileno()] = worker
        self._selector.register(worker.connection, selectors.EVENT_READ, lambda: self._read(worker))

    def _read(self, worker: Worker) -> None:
        try:
            for message in worker.receive():
                self._take(worker, message)
        except BlockingIOError:
            pass
        except (OSError, *_INVALID):  # the worker has ended, or has sent an invalid message
            self._drop(worker)

    def _drop(self, worker: Worker) -> None:
        del self._workers[worker.connection.fileno()]
        self._selector.unregister(worker.connection)
        worker.close()
        if worker.rank is not None and not worker.is_leaving:
            send("died", rank=worker.rank, generation=worker.generation)

    def _take(self, worker: Worker, message: Message) -> None:
        kind = message["kind"]
        if kind == "begun":
            worker.rank, worker.generation = int(message["rank"]), int(message["generation"])
            send("begun", rank=worker.rank, generation=worker.generation)
        elif kind == "leaving":
            worker.is_leaving = True
            send("leaving", rank=worker.rank, generation=worker.generation, why=message["why"])
        elif kind == "store":
            self._store(worker.memory.pop(0), [int(part) for part in message["version"]], message["size"])
        elif kind == "take":
            memory = [] if self._version is None else [self._memory]
            worker.send(encode("stored", version=self._version, size=self._size), memory)

    def _store(self, memory: int, version: list[int], size: int) -> None:
        """Keeps the newest state."""
        try:
            check_memory(memory, size)
            if self._version is None or version > self._version:
                self._memory, memory = memory, self._memory
                self._version, self._size = version, size
        finally:
            if memory != -1:
                os.close(memory)


class Worker:
    """The connection of one worker process. Its handshake is complete."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.rank: int | None = None
        self.generation = 0
        self.is_leaving = False
        self.memory: list[int] = []
        self._reader = Reader()

    def receive(self) -> list[Message]:
        """Returns the next messages. OSError or ValueError once the connection cannot be used any more."""
        data, memory, _, _ = socket.recv_fds(self.connection, _BLOCK, _MOST_DESCRIPTORS)
        self.memory += memory
        if not data:
            raise ConnectionError("the worker has closed the connection")
        if len(self.memory) > _MOST_DESCRIPTORS:
            raise ValueError("the worker sent more descriptors than messages that need one")
        return self._reader.take(data)

    def send(self, line: bytes, memory: list[int] | None = None) -> None:
        """Sends a line. A worker that does not receive misses it."""
        with contextlib.suppress(OSError):
            socket.send_fds(self.connection, [line], memory or [], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def close(self) -> None:
        self.connection.close()
        for descriptor in self.memory:
            os.close(descriptor)


def send(kind: str, **content: Any) -> None:
    """Sends a line to the launcher. Without a launcher, nothing is left to do."""
    try:
        os.write(1, MARK + encode(kind, **content))
    except OSError:
        sys.exit(0)


if __name__ == "__main__":
    for signum in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # the launcher decides when the job is over
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(0))
    Agent(float(sys.argv[1])).run()
