"""Fixtures that act as unauthenticated clients: connections made by hand, and processes of another user."""

from __future__ import annotations

import os
import pwd
import resource
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing import get_context
from typing import Any

import pytest

from perseus_like.protocol.authentication import AuthenticatedListener
from tests.job import LIMIT_SECONDS

AsOtherUser = Callable[..., None]
Address = tuple[str, int]
SilentConnections = Callable[[Address, int], None]


@pytest.fixture(scope="session")
def as_other_user() -> AsOtherUser:
    """Returns a function that calls `function(*arguments)` in a child process with another user's uid.

    The test fails if the function raises an error.
    """
    if os.geteuid() != 0:
        pytest.skip("needs root, to start a process of another user: its connections to this user's sockets")

    def run(function: Callable[..., object], *arguments: Any) -> None:
        child = get_context("fork").Process(target=_run_as_nobody, args=(function, *arguments))
        child.start()
        child.join(LIMIT_SECONDS)
        assert child.exitcode == 0

    return run


def _run_as_nobody(function: Callable[..., object], *arguments: Any) -> None:
    nobody = pwd.getpwnam("nobody")
    os.setgroups([])
    os.setgid(nobody.pw_gid)
    os.setuid(nobody.pw_uid)
    function(*arguments)


@pytest.fixture
def silent_connections() -> Iterator[SilentConnections]:
    """Returns a function that makes `count` connections to an address.

    They stay silent, and open until the test ends.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as stack:

        def connect(address: Address, count: int) -> None:
            for _ in range(count):
                stack.enter_context(socket.create_connection(address, LIMIT_SECONDS))

        yield connect
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class ServedListener:
    """The event loop of an `AuthenticatedListener` on a thread.

    Records accepted connections and counts the loop's turns.
    """

    def __init__(self, listener: AuthenticatedListener) -> None:
        self.accepted: list[socket.socket] = []
        self.turns = 0
        self._changed = threading.Condition()
        self._listener = listener
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._stop, self._stop_requested = socket.socketpair()
        self._poll.register(self._stop_requested, select.POLLIN)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while all(descriptor != self._stop_requested.fileno() for descriptor, _ in self._poll.poll()):
            accepted = self._listener.accept()
            with self._changed:
                self.turns += 1
                self.accepted += accepted
                self._changed.notify_all()

    def wait_for(self, count: int) -> bool:
        """Waits until `count` connections have been accepted. Returns whether this happened within the limit."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self.accepted) >= count, LIMIT_SECONDS)

    def close(self) -> None:
        self._stop.close()
        self._thread.join()
        self._stop_requested.close()
        self._listener.close()
        for connection in self.accepted:
            connection.close()


Serve = Callable[[AuthenticatedListener], ServedListener]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Returns a function that runs the event loop of a listener on a thread until the test ends."""
    served: list[ServedListener] = []

    def run(listener: AuthenticatedListener) -> ServedListener:
        served.append(ServedListener(listener))
        return served[-1]

    yield run
    for each in served:
        each.close()
