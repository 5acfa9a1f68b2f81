"""A worker of an elastic job: it joins one generation after another and receives host updates from the launcher."""

from __future__ import annotations

import base64
import contextlib
import functools
import itertools
import logging
import os
import queue
import socket
import struct
import sys
import threading
from collections.abc import Callable

from ..errors import HorovodInternalError, PeerLostError, UnavailableError
from ..protocol.authentication import HANDSHAKE_SECONDS, authenticate
from ..protocol.messages import (
    VARIABLE,
    LauncherVariable,
    Message,
    Reader,
    agent_variable,
    elastic_variable,
    encode,
    launcher_variable,
)
from ..protocol.rank_variables import set_horovod_variables
from .notification import Assignment, HostUpdateResult, notification_manager
from .state_agent_client import Replaceable, StateAgentClient

logger = logging.getLogger(__name__)

_CONNECT_SECONDS = (1.0, 3.0, 10.0)  # the longest attempt to reach an address, in each round
_LONGEST_WELCOME = 1024
_NO_WORKER = (
    "this process is no worker of the elastic job around it ({}): only the process that perseusrun started, or a "
    "program that replaced it (exec), can call init()"
)


class Membership:
    """The connection to the launcher.

    One thread at a time calls `join` and the exchange. Host updates arrive on a thread of their own.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.wants_sync = True  # True if this worker asks for a sync when it joins the next generation
        self.assignment: Assignment | None = None  # the assignment of the current or last session
        self._connection = connection
        self._answers: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards what follows
        self._generation = 0
        self._cancel_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._listen, name="perseus-elastic", daemon=True)
        self._thread.start()

    def join(self, start: Callable[[Assignment], object]) -> None:
        """Waits for an assignment in the next generation and starts its session.

        If another member ends meanwhile, it waits again. So does a worker that has trained before if the session cannot
        start with new members, for example because one has no UCX: the new members end with the error. SystemExit if
        the job does not need this worker any more.
        """
        while True:
            assignment = self._next_assignment()
            # Before the start: the core has no threads yet that read the environment.
            set_horovod_variables(assignment.rank, assignment.ranks_per_host)
            try:
                start(assignment)
            except HorovodInternalError as error:
                if not (self._is_cancelled() or isinstance(error, PeerLostError)):
                    raise
                logger.info("generation %d was cancelled: %s", assignment.generation, error)
                self.wants_sync = True
            except UnavailableError as error:
                if not (self.assignment and assignment.has_newcomers):
                    raise
                logger.warning("generation %d cannot start with its new workers: %s", assignment.generation, error)
                self.wants_sync = True
            else:
                self.assignment, self.wants_sync = assignment, True
                return

    def take_over(self, state: Replaceable) -> None:
        """Does nothing: the state is in this process, or comes from rank 0."""

    def report_synced(self, state: object) -> None:
        """Reports that this worker has the training's state and can give it to others."""
        self._send("synced")

    def _next_assignment(self) -> Assignment:
        self._send("ready", sync=self.wants_sync)
        while (answer := self._answers.get())["kind"] not in {"join", "dismissed"}:
            pass  # an answer for an earlier generation
        if answer["kind"] == "dismissed":
            logger.info("the elastic job does not need this worker any more; the worker ends")
            sys.exit(0)
        number = int(answer["generation"])
        return Assignment(
            number,
            bool(answer["sync"]),
            int(answer["rank"]),
            sum(answer["ranks_per_host"]),
            answer["ranks_per_host"],
            bool(answer["newcomers"]),
            functools.partial(self._exchange, number),
            self._cancel_fd,
        )

    def _exchange(self, generation: int, mine: bytes) -> list[bytes]:
        self._send("gather", generation=generation, bytes=base64.b64encode(mine).decode())
        while True:
            answer = self._answers.get()
            if answer["kind"] == "dismissed" or answer.get("generation") == generation:
                break
        if answer["kind"] != "gathered":
            raise PeerLostError("another worker ended while the generation was starting")
        return [base64.b64decode(each) for each in answer["all"]]

    def _is_cancelled(self) -> bool:
        with self._lock:
            try:
                os.eventfd_read(self._cancel_fd)
                os.eventfd_write(self._cancel_fd, 1)
            except BlockingIOError:
                return False
            return True

    def _send(self, kind: str, **content: object) -> None:
        try:
            self._connection.sendall(encode(kind, **content))
        except OSError as error:
            raise UnavailableError(
                f"the launcher of this elastic job cannot be reached: {error}; see whether perseusrun still runs"
            ) from error

    # The thread.

    def _listen(self) -> None:
        reader = Reader()
        try:
            while data := self._connection.recv(1 << 16):
                for message in reader.take(data):
                    self._take(message)
        except (OSError, ValueError) as error:
            logger.error("the connection to the launcher is broken: %s", error)
        self._answers.put({"kind": "dismissed"})

    def _take(self, message: Message) -> None:
        kind = message["kind"]
        if kind == "hosts":
            notification_manager.handle_hosts_updated(message["stamp"], HostUpdateResult(message["result"]))
            return
        if kind == "join":
            with self._lock:
                self._generation = message["generation"]
                with contextlib.suppress(BlockingIOError):  # set for an earlier one
                    os.eventfd_read(self._cancel_fd)
            # The generation was formed with these hosts: updates up to here are known.
            notification_manager.known_until = message["stamp"]
        elif kind == "cancelled":
            with self._lock:
                if message["generation"] != self._generation:
                    return
                os.eventfd_write(self._cancel_fd, 1)
        self._answers.put(message)


@functools.cache
def membership() -> Membership | StateAgentClient | None:
    """The connection to the launcher of an elastic job, or to its agent on this host; None in any other process."""
    given = elastic_variable()
    if given is None:
        return None
    if agent := agent_variable(given):
        return StateAgentClient(agent.generation, agent.secret)
    if launcher := launcher_variable(given):
        return Membership(_connect(launcher))
    descriptor, _, pid = given.partition(":")
    try:
        connection = socket.socket(fileno=int(descriptor))
        owner, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    except (OSError, ValueError):
        owner = -1
    if str(owner) != pid:
        raise UnavailableError(_NO_WORKER.format(f"{VARIABLE}={given}"))
    connection.set_inheritable(False)
    return Membership(connection)


def _connect(launcher: LauncherVariable) -> socket.socket:
    """Returns a connection to the launcher, at the first of its addresses that can be reached from here."""
    problem: OSError | None = None
    for seconds, endpoint in itertools.product(_CONNECT_SECONDS, launcher.endpoints):
        connection = _connect_to(endpoint, launcher, seconds)
        if isinstance(connection, socket.socket):
            return connection
        problem = connection
    places = ", ".join(f"{host} port {port}" for host, port in launcher.endpoints)
    raise UnavailableError(
        f"init(): this host does not reach the launcher of this elastic job at {places}: {problem}. Check that no "
        "firewall is between the hosts, or give perseusrun the interface with --network-interfaces"
    )


def _connect_to(endpoint: tuple[str, int], launcher: LauncherVariable, seconds: float) -> socket.socket | OSError:
    """Returns a connection to the launcher at this address, or the reason why there is none."""
    connection = None
    try:
        connection = socket.create_connection(endpoint, seconds)
        authenticate(connection, launcher.secret)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(encode("hello", number=launcher.number, pid=os.getpid()))
        connection.settimeout(HANDSHAKE_SECONDS)
        answer = connection.recv(_LONGEST_WELCOME)
        connection.settimeout(None)
    except OSError as error:
        if connection:
            connection.close()
        return error
    if not answer:
        raise UnavailableError(_NO_WORKER.format(f"worker {launcher.number}"))
    return connection
