"""This process as a worker of an elastic job: it joins one generation after another, and hears of hosts that change."""

from __future__ import annotations

import base64
import contextlib
import functools
import logging
import os
import queue
import socket
import struct
import sys
import threading
from collections.abc import Callable

from ..errors import HorovodInternalError, PeerLostError, UnavailableError
from ..launch.elastic.messages import AGENT, VARIABLE, Message, Reader, encode, told
from .notification import HostUpdateResult, notification_manager
from .parking import Keepable, Parking
from .place import Place

logger = logging.getLogger(__name__)


class Membership:
    """The line to the launcher. `join` and the exchange are for one thread at a time; news comes on one of its own."""

    def __init__(self, connection: socket.socket) -> None:
        self.wants_sync = True  # what this worker asks for when it joins the next generation
        self.place: Place | None = None  # in the generation whose session runs, or ran last
        self._connection = connection
        self._answers: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards what follows
        self._generation = 0
        self._called_off = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._listen, name="perseus-elastic", daemon=True)
        self._thread.start()

    def join(self, start: Callable[[Place], object]) -> None:
        """Waits for a place in the next generation and starts its session; anew, where a member ends meanwhile.

        SystemExit where there is no place for this worker any more.
        """
        while True:
            place = self._next_place()
            try:
                start(place)
            except HorovodInternalError as error:
                if not (self._is_called_off() or isinstance(error, PeerLostError)):
                    raise
                logger.info("generation %d was called off: %s", place.generation, error)
                self.wants_sync = True
            else:
                self.place, self.wants_sync = place, True
                return

    def take_over(self, state: Keepable) -> None:
        """The state is in this process, or comes from rank 0."""

    def tell_synced(self) -> None:
        """The training's state is here now: this worker can give it to others."""
        self._say("synced")

    def _next_place(self) -> Place:
        self._say("ready", sync=self.wants_sync)
        while (answer := self._answers.get())["kind"] not in {"join", "dismissed"}:
            pass  # what belongs to an earlier generation
        if answer["kind"] == "dismissed":
            logger.info("there is no place for this worker any more; it ends")
            sys.exit(0)
        number = int(answer["generation"])
        return Place(
            number,
            bool(answer["sync"]),
            int(answer["rank"]),
            int(answer["size"]),
            functools.partial(self._exchange, number),
            self._called_off,
        )

    def _exchange(self, generation: int, mine: bytes) -> list[bytes]:
        self._say("gather", generation=generation, bytes=base64.b64encode(mine).decode())
        while True:
            answer = self._answers.get()
            if answer["kind"] == "dismissed" or answer.get("generation") == generation:
                break
        if answer["kind"] != "gathered":
            raise PeerLostError("another worker ended while the generation was starting")
        return [base64.b64decode(each) for each in answer["all"]]

    def _is_called_off(self) -> bool:
        with self._lock:
            try:
                os.eventfd_read(self._called_off)
                os.eventfd_write(self._called_off, 1)
            except BlockingIOError:
                return False
            return True

    def _say(self, kind: str, **content: object) -> None:
        try:
            self._connection.sendall(encode(kind, **content))
        except OSError as error:
            raise UnavailableError(f"the launcher of this elastic job cannot be reached: {error}") from error

    # The thread.

    def _listen(self) -> None:
        reader = Reader()
        try:
            while data := self._connection.recv(1 << 16):
                for message in reader.take(data):
                    self._take(message)
        except (OSError, ValueError) as error:
            logger.error("the line to the launcher is broken: %s", error)
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
                    os.eventfd_read(self._called_off)
            # What was known when the generation was formed is no news in it.
            notification_manager.known_until = message["stamp"]
        elif kind == "called_off":
            with self._lock:
                if message["generation"] != self._generation:
                    return
                os.eventfd_write(self._called_off, 1)
        self._answers.put(message)


@functools.cache
def membership() -> Membership | Parking | None:
    """The line to the launcher of an elastic job, or to its agent on this host; None in any other process."""
    given = told()
    if given is None:
        return None
    if given.startswith(AGENT):
        generation, _, name = given.removeprefix(AGENT).partition(":")
        return Parking(name, int(generation))
    descriptor, _, launcher = given.partition(":")
    try:
        connection = socket.socket(fileno=int(descriptor))
        owner, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    except (OSError, ValueError):
        owner = -1
    if str(owner) != launcher:
        raise UnavailableError(
            f"this process is no worker of the elastic job around it ({VARIABLE}={given}): only the process that "
            "perseusrun started, or one that it became, can call init()"
        )
    connection.set_inheritable(False)
    return Membership(connection)
