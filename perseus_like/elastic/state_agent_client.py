"""This process as a worker of an elastic job on several hosts, where every generation is another MPI world.

MPI cannot lose a rank, nor be initialised twice in a process, so the workers are replaced with it. What was committed
stays in the memory of an agent on each host, which the next generation's rank 0 takes it from.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn, Protocol

from ..errors import UnavailableError
from ..launch.elastic.messages import Reader, encode
from ..session import session
from .assignment import Assignment
from .notification import HostUpdateResult, notification_manager

logger = logging.getLogger(__name__)


class Replaceable(Protocol):
    """What a state must be able to do where workers are replaced."""

    def kept(self) -> Any:
        """All that the last `save` keeps, to be pickled."""

    def take(self, kept: Any) -> None:
        """Goes on from what another process has kept."""


class StateAgentClient:
    """The line to this host's agent. For one thread, but for news, which comes on one of its own."""

    def __init__(self, name: str, generation: int) -> None:
        self.wants_sync = True
        self.assignment: Assignment | None = None
        self._name = name
        self._generation = generation
        self._commits = 0
        self._connection = socket.socket(socket.AF_UNIX)
        try:
            self._connection.connect("\0" + name)
        except OSError as error:
            raise UnavailableError(f"the agent of this elastic job cannot be reached on this host: {error}") from error

    def join(self, start: Callable[[Assignment], object]) -> None:
        """Starts the generation's session, under the launcher that started this process."""
        assignment = Assignment(self._generation, sync=True)
        start(assignment)
        self.assignment = replace(assignment, rank=session.core.rank(), size=session.core.size())
        notification_manager.known_until = 0
        notification_manager.on_commit = self.park
        self._say("begun", rank=session.core.rank(), generation=self._generation)
        threading.Thread(target=self._listen, name="perseus-elastic", daemon=True).start()

    def take_over(self, state: Replaceable) -> None:
        """Rank 0, whose state all get, goes on from what the generation before has committed."""
        if session.core.rank() != 0:
            return
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect("\0" + self._name)
            connection.sendall(encode("take"))
            answer, memory, _, _ = socket.recv_fds(connection, 1 << 16, 1)
        for descriptor in memory:
            with os.fdopen(descriptor, "rb") as file:
                file.seek(0)
                state.take(pickle.load(file))
            logger.info("going on from commit %s", json.loads(answer)["version"])

    def park(self, state: Replaceable) -> None:
        """Hands the agent what was committed; the first rank of each host does."""
        self._commits += 1
        if session.core.local_rank() != 0:
            return
        memory = os.memfd_create("perseus-elastic-state", os.MFD_CLOEXEC)
        with os.fdopen(memory, "wb") as file:
            pickle.dump(state.kept(), file, pickle.HIGHEST_PROTOCOL)
            file.flush()
            line = encode("park", version=[self._generation, self._commits])
            socket.send_fds(self._connection, [line], [memory])

    def report_synced(self) -> None:
        """Nobody asks: what counts is what the agents keep."""

    def leave_failed(self) -> NoReturn:
        """Another member is lost. MPI's world is beyond repair, so this process ends without a word to it."""
        self._say("leaving", why="failed")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    def leave_for_others(self, state: Any) -> NoReturn:
        """Hosts have changed: all ranks end in good order, with the state as it is now."""
        state.save()
        self.park(state)
        self._say("leaving", why="hosts")
        sys.exit(0)

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
            logger.error("the line to the agent is broken: %s", error)
