"""Strangers: connections by hand, and processes of another user."""

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

AsStranger = Callable[..., None]
Address = tuple[str, int]
Strangers = Callable[[Address, int], None]


@pytest.fixture(scope="session")
def as_stranger() -> AsStranger:
    """`as_stranger(function, *arguments)` runs it in a child with another user's uid; the test fails if it raises."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to start a process of another user: its connections to this user's sockets")

    def run(function: Callable[..., object], *arguments: Any) -> None:
        child = get_context("fork").Process(target=_run_as_nobody, args=(function, *arguments))
        child.start()
        child.join(60)
        assert child.exitcode == 0

    return run


def _run_as_nobody(function: Callable[..., object], *arguments: Any) -> None:
    nobody = pwd.getpwnam("nobody")
    os.setgroups([])
    os.setgid(nobody.pw_gid)
    os.setuid(nobody.pw_uid)
    function(*arguments)


@pytest.fixture
def strangers() -> Iterator[Strangers]:
    """`strangers(address, count)` makes connections that stay silent, and open until the test ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as stack:

        def come(address: Address, count: int) -> None:
            for _ in range(count):
                stack.enter_context(socket.create_connection(address, 30))

        yield come
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Served:
    """The event loop of an `AuthenticatedListener`, on a thread: what it has let in, and how often it woke up."""

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
        """True once so many connections have been let in."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self.accepted) >= count, 30)

    def close(self) -> None:
        self._stop.close()
        self._thread.join()
        self._stop_requested.close()
        self._listener.close()
        for connection in self.accepted:
            connection.close()


Serve = Callable[[AuthenticatedListener], Served]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """`serve(listener)` runs its event loop on a thread until the test ends."""
    served: list[Served] = []

    def run(listener: AuthenticatedListener) -> Served:
        served.append(Served(listener))
        return served[-1]

    yield run
    for each in served:
        each.close()
