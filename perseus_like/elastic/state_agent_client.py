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
from ..protocol.agent_protocol import check_memory, seal, socket_names
from ..protocol.authentication import HANDSHAKE_SECONDS, HandshakeClosedError, authenticate
from ..protocol.messages import Message, Reader, encode
from ..session import session
from .notification import Assignment, HostUpdateResult, notification_manager

logger = logging.getLogger(__name__)

# If other processes keep the agent's queue full, the client tries to connect for this long.
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
        notification_manager.on_commit = self.store
        self._send("begun", rank=self.assignment.rank, generation=self._generation)
        threading.Thread(target=self._listen, name="perseus-elastic", daemon=True).start()

    def take_over(self, state: Replaceable) -> None:
        """Copies the newest committed state into `state` on rank 0. The other ranks get it from rank 0."""
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

    def store(self, state: Replaceable) -> None:
        """Sends the state agent a copy of the committed state. Only the lowest rank of each host sends it."""
        self._commits += 1
        self._keep(state)

    def _keep(self, state: Replaceable) -> None:
        if session.core.local_rank() != 0:
            return
        memory = os.memfd_create("perseus-elastic-state", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with os.fdopen(memory, "wb") as file:
            pickle.dump(state.kept(), file, pickle.HIGHEST_PROTOCOL)
            file.flush()
            seal(memory)
            line = encode("store", version=[self._generation, self._commits], size=file.tell())
            socket.send_fds(self._connection, [line], [memory])

    def report_synced(self, state: Replaceable) -> None:
        """Gives this host's agent the state with which the generation begins. It may have missed some generations."""
        self._keep(state)

    def leave_failed(self) -> NoReturn:
        """Ends this process without MPI_Finalize: MPI's world has lost a member and cannot be repaired."""
        self._send("leaving", why="failed")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    def leave_for_others(self, state: Any) -> NoReturn:
        """Saves the current state and ends this process normally, since hosts have changed. All ranks do this."""
        state.save()
        self.store(state)
        self._send("leaving", why="hosts")
        sys.exit(0)

    def _connect(self) -> socket.socket:
        """Returns a connection to the agent, which belongs to this user and knows the secret.

        It skips sockets of these names that belong to other users or do not know the secret.
        """
        trouble = "no process listens at its sockets"
        deadline = time.monotonic() + _CONNECT_SECONDS
        while time.monotonic() < deadline:
            is_busy = False
            for name in socket_names(self._secret):
                connection = socket.socket(socket.AF_UNIX)
                try:
                    connection.setblocking(False)  # the full queue of another user's socket must not block this process
                    connection.connect(name)
                    connection.settimeout(HANDSHAKE_SECONDS)
                    authenticate(connection, self._secret)
                except BlockingIOError:
                    is_busy = True
                except (HandshakeClosedError, ConnectionResetError, BrokenPipeError) as error:
                    # An agent to which more workers connect at once than it expects closes the oldest connections.
                    is_busy = True
                    trouble = str(error)
                except ConnectionRefusedError:
                    pass  # no process has bound this name
                except OSError as error:
                    trouble = str(error)
                else:
                    connection.settimeout(None)
                    return connection
                connection.close()
            if not is_busy:
                break
            time.sleep(_RETRY_SECONDS)
        raise UnavailableError(
            f"the state agent of this elastic job cannot be reached on this host: {trouble}; see whether perseusrun "
            "still runs"
        )

    def _send(self, kind: str, **content: object) -> None:
        try:
            self._connection.sendall(encode(kind, **content))
        except OSError as error:
            raise UnavailableError(f"the state agent of this elastic job has ended: {error}") from error

    def _listen(self) -> None:
        reader = Reader()
        try:
            while data := self._connection.recv(1 << 16):
                for message in reader.take(data):
                    notification_manager.handle_hosts_updated(message["stamp"], HostUpdateResult(message["result"]))
        except (OSError, ValueError) as error:
            logger.error("the connection to the state agent is broken: %s", error)


def _receive_answer(connection: socket.socket) -> tuple[Message, int | None]:
    """Returns the agent's answer to `take` and the descriptor of the memory; None if it keeps no state."""
    reader = Reader()
    memory: list[int] = []
    try:
        while True:
            data, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 1)
            memory += descriptors
            if not data:
                raise UnavailableError("the state agent of this elastic job has ended before it sent its state")
            for message in reader.take(data):
                if message["kind"] == "stored":  # the agent may have passed on a host update before
                    return message, memory.pop() if memory else None
    finally:
        for descriptor in memory:
            os.close(descriptor)
