"""What the launcher and a worker of an elastic job tell each other: one line of JSON each, over a pair of sockets.

The worker inherits its end, so there is no name to guess and nobody to let in.

    worker                                      launcher
    ready: out of its session, wants a place →
                                                ← join: generation, rank, size, whether state is to be synchronized
    gather: its bytes for all ranks          →
                                                ← gathered: the bytes of all ranks
                                                ← called_off: a rank of the generation has ended
    synced: it has the training's state      →
                                                ← hosts: hosts have come or gone; to be noticed at the next commit
                                                ← dismissed: there is no place any more; the process is to end
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

Message = dict[str, Any]
VARIABLE = "PERSEUS_ELASTIC"
AGENT = "agent:"  # in front of a generation's number and the name of the agent's socket, where workers are replaced


def encode(kind: str, **content: Any) -> bytes:
    """One message."""
    return json.dumps({"kind": kind, **content}).encode() + b"\n"


class Reader:
    """Cuts what arrives into messages."""

    def __init__(self) -> None:
        self._pending = b""

    def take(self, data: bytes) -> list[Message]:
        """The messages that are complete with this. ValueError for what is none."""
        *lines, self._pending = (self._pending + data).split(b"\n")
        messages = [json.loads(line) for line in lines]
        if not all(isinstance(message, dict) and "kind" in message for message in messages):
            raise ValueError("this is no message of an elastic job")
        return messages


def elastic_variable() -> str | None:
    """The value of `VARIABLE`; None in a process that is no worker of an elastic job."""
    return os.environ.get(VARIABLE) or None


def is_elastic() -> bool:
    """True in a worker of an elastic job."""
    return elastic_variable() is not None


def variable_for(end: socket.socket) -> str:
    """The value of `VARIABLE` for a worker that inherits this end: its number, and which launcher made it."""
    return f"{end.fileno()}:{os.getpid()}"
