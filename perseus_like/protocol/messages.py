"""Messages between the launcher and a worker of an elastic job: lines of JSON.

On one host, a worker inherits one end of a pair of sockets, so there is no name to guess and no peer to authenticate.
On several hosts, it connects to the launcher over TCP (`authentication.py`), and begins with a hello. Needs the
standard library only.

    worker                                      launcher
    hello: its number, and its process id    →
                                                ← welcome: no other process has connected as this worker
    ready: has no session, wants to join     →
                                                ← join: generation, rank, ranks per host, whether to sync, …
    gather: its bytes for all ranks          →
                                                ← gathered: the bytes of all ranks
                                                ← cancelled: a rank of the generation has ended
    synced: it has the training's state      →
                                                ← hosts: hosts have come or gone; to be noticed at the next commit
                                                ← dismissed: the job does not need it any more; the process is to end
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]
VARIABLE = "PERSEUS_ELASTIC"
_AGENT = "agent"  # begins the value for a worker that belongs to one generation only
_LAUNCHER = "launcher"  # begins the value for a worker that connects to the launcher
# The largest message holds the addresses of all ranks. A longer one is an error.
_LONGEST = 1 << 26


def encode(kind: str, **content: Any) -> bytes:
    """Returns one message."""
    return json.dumps({"kind": kind, **content}).encode() + b"\n"


class Reader:
    """Cuts a stream into messages."""

    def __init__(self, longest: int = _LONGEST) -> None:
        self._longest = longest
        self._pending = b""

    def take(self, data: bytes) -> list[Message]:
        """Returns the messages that `data` completes. ValueError for an invalid message."""
        *lines, self._pending = (self._pending + data).split(b"\n")
        if len(self._pending) > self._longest:
            raise ValueError(f"a message is longer than {self._longest} bytes")
        try:
            messages = [json.loads(line) for line in lines]
        except RecursionError:
            raise ValueError("this is no message of this job: its brackets are nested too deep") from None
        if not all(isinstance(message, dict) and "kind" in message for message in messages):
            raise ValueError("this is no message of this job")
        return messages


def elastic_variable() -> str | None:
    """Returns the value of `VARIABLE`; None in a process that is no worker of an elastic job."""
    return os.environ.get(VARIABLE) or None


def is_elastic() -> bool:
    """Returns True in a worker of an elastic job."""
    return elastic_variable() is not None


def variable_for(end: socket.socket) -> str:
    """Returns the value of `VARIABLE` for a worker that inherits this end: its number, and the launcher's pid."""
    return f"{end.fileno()}:{os.getpid()}"


@dataclass(frozen=True)
class LauncherVariable:
    """The value of `VARIABLE` for a worker that connects to the launcher over TCP."""

    number: int  # of the worker
    secret: str
    endpoints: list[tuple[str, int]]  # addresses and ports of the launcher

    def __str__(self) -> str:
        return " ".join(
            [_LAUNCHER, str(self.number), self.secret, *(f"{host} {port}" for host, port in self.endpoints)]
        )


def launcher_variable(value: str) -> LauncherVariable | None:
    """Reads a `LauncherVariable`; None for any other value."""
    name, *words = value.split()
    if name != _LAUNCHER:
        return None
    number, secret, *places = words
    return LauncherVariable(int(number), secret, list(zip(places[::2], map(int, places[1::2]), strict=True)))


@dataclass(frozen=True)
class AgentVariable:
    """The value of `VARIABLE` for a worker of a job on several hosts, which connects to the state agent of its host."""

    generation: int
    secret: str  # the secret of the state agents
    hosts: list[str]
    ranks: list[int]  # the number of ranks on each host


def variable_for_generation(generation: int, secret: str, hosts: str) -> str:
    """Returns the value of `VARIABLE` for all workers of a generation on `hosts` ("a:2,b:1")."""
    return f"{_AGENT} {generation} {secret} {hosts}"


def agent_variable(value: str) -> AgentVariable | None:
    """Reads what `variable_for_generation` returns; None for any other value."""
    words = value.split()
    if len(words) != 4 or words[0] != _AGENT:
        return None
    hosts = [host.rpartition(":") for host in words[3].split(",")]
    return AgentVariable(int(words[1]), words[2], [name for name, _, _ in hosts], [int(ranks) for _, _, ranks in hosts])
