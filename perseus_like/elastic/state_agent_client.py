"""A worker of an elastic job on several hosts, where every generation is another MPI world.

MPI cannot lose a rank, nor can a process initialise it twice, so each generation has new workers. The state agent of
each host keeps the committed state in memory, and rank 0 of the next generation takes it from there.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn, Protocol

from ..errors import UnavailableError
from ..launch.authentication import HANDSHAKE_SECONDS, authenticate
from ..launch.elastic.agent_protocol import check_memory, seal, socket_names
from ..launch.elastic.messages import Message, Reader, encode
from ..session import session
from .assignment import Assignment
from .notification import HostUpdateResult, notification_manager

logger = logging.getLogger(__name__)

# While strangers keep the agent's queue full, connecting is tried again for this long.
_CONNECT_SECONDS = 30.0
_RETRY_SECONDS = 0.1


class Replaceable(Protocol):
    """The interface of a state whose worker can be replaced."""

    def kept(self) -> Any:
        """Returns all that the last `save` keeps, to be pickled."""

    def take(self, kept: Any) -> None:
        """Continues from what another process has kept."""


class StateAgentClient:
    """The connection to this host's state agent.

    One thread calls the methods. Host updates arrive on a thread of their own.
    """

    def __init__(self, generation: int, secret: str) -> None:
        self.wants_sync = True
        self.assignment: Assignment | None = None
        self._generation = generation
        self._secret = secret
        self._commits = 0
        self._connection = self._connect()

    def join(self, start: Callable[[Assignment], object]) -> None:
        """Starts the generation's session, under the mpirun that started this process."""
        assignment = Assignment(self._generation, sync=True)
        start(assignment)
        self.assignment = replace(assignment, rank=session.core.rank(), size=session.core.size())
        notification_manager.known_until = 0
        notification_manager.on_commit = self.park
        self._say("begun", rank=self.assignment.rank, generation=self._generation)
        threading.Thread(target=self._listen, name="perseus-elastic", daemon=True).start()

    def take_over(self, state: Replaceable) -> None:
        """Gives rank 0 the newest committed state; the other ranks get it from rank 0."""
        if session.core.rank() != 0:
            return
        with self._connect() as connection:
            connection.settimeout(_CONNECT_SECONDS)
            connection.sendall(encode("take"))
            answer, memory = _receive_answer(connection)
        if memory is None:
            return
        with os.fdopen(memory, "rb") as file:
            check_memory(memory, answer["size"])
            file.seek(0)
            state.take(pickle.load(file))
        logger.info("going on from commit %s", answer["version"])

    def park(self, state: Replaceable) -> None:
        """Gives the agent a copy of the committed state; one rank of each host does."""
        self._commits += 1
        if session.core.local_rank() != 0:
            return
        memory = os.memfd_create("perseus-elastic-state", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with os.fdopen(memory, "wb") as file:
            pickle.dump(state.kept(), file, pickle.HIGHEST_PROTOCOL)
            file.flush()
            seal(memory)
            line = encode("park", version=[self._generation, self._commits], size=file.tell())
            socket.send_fds(self._connection, [line], [memory])

    def report_synced(self) -> None:
        """Does nothing: only the copies in the agents count."""

    def leave_failed(self) -> NoReturn:
        """Ends this process without a word to MPI, whose world has lost a member and cannot be repaired."""
        self._say("leaving", why="failed")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    def leave_for_others(self, state: Any) -> NoReturn:
        """Ends this process in good order with its present state, since hosts have changed. All ranks do this."""
        state.save()
        self.park(state)
        self._say("leaving", why="hosts")
        sys.exit(0)

    def _connect(self) -> socket.socket:
        """Returns a connection to the agent, which belongs to this user and knows the secret.

        A socket of that name that belongs to a stranger is passed over.
        """
        trouble = "nobody listens at its sockets"
        deadline = time.monotonic() + _CONNECT_SECONDS
        while time.monotonic() < deadline:
            is_busy = False
            for name in socket_names(self._secret):
                connection = socket.socket(socket.AF_UNIX)
                try:
                    connection.setblocking(False)  # a stranger's full queue must not hold this process up
                    connection.connect(name)
                    connection.settimeout(HANDSHAKE_SECONDS)
                    authenticate(connection, self._secret)
                except BlockingIOError:
                    is_busy = True
                except ConnectionRefusedError:
                    pass  # nobody has this name
                except OSError as error:
                    trouble = str(error)
                else:
                    connection.settimeout(None)
                    return connection
                connection.close()
            if not is_busy:
                break
            time.sleep(_RETRY_SECONDS)
        raise UnavailableError(f"the agent of this elastic job cannot be reached on this host: {trouble}")

    def _say(self, kind: str, **content: object) -> None:
        try:
            self._connection.sendall(encode(kind, **content))
        except OSError as error:
            raise UnavailableError(f"the agent of this elastic job is gone: {error}") from error

    def _listen(self) -> None:
        reader = Reader()
        try:
            while data := self._connection.recv(1 << 16):
                for message in reader.take(data):
                    notification_manager.handle_hosts_updated(message["stamp"], HostUpdateResult(message["result"]))
        except (OSError, ValueError) as error:
            logger.error("the connection to the agent is broken: %s", error)


def _receive_answer(connection: socket.socket) -> tuple[Message, int | None]:
    """Returns the agent's answer to `take` and the descriptor of the memory; None if it keeps no state."""
    reader = Reader()
    memory: list[int] = []
    try:
        while True:
            data, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 1)
            memory += descriptors
            if not data:
                raise UnavailableError("the agent of this elastic job has ended before it gave its state")
            for message in reader.take(data):
                return message, memory.pop() if memory else None
    finally:
        for descriptor in memory:
            os.close(descriptor)
