"""Tests of an elastic job's state agent, with processes of another user and clients that do not know the secret."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

import perseus_like.launch.elastic.agent as agent_program
from perseus_like.elastic.state_agent_client import StateAgentClient, _receive_answer
from perseus_like.errors import UnavailableError
from perseus_like.protocol.agent_protocol import MARK, check_memory, seal, socket_names
from perseus_like.protocol.authentication import authenticate, new_secret
from perseus_like.protocol.messages import encode
from tests.job import LIMIT_SECONDS, wait_until

from .conftest import AsOtherUser


class RunningAgent:
    """A running state agent, whose launcher is this process."""

    def __init__(self, stack: ExitStack, seconds: int = LIMIT_SECONDS) -> None:
        self.secret = new_secret()
        command = [sys.executable, "-IS", str(agent_program.__file__), str(seconds)]
        pipe = subprocess.PIPE
        self.process = stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe))
        stack.callback(self.process.kill)

    def start(self) -> None:
        self.send("hello", secret=self.secret)
        assert self.next()["kind"] == "here"

    def send(self, kind: str, **content: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(encode(kind, **content))
        self.process.stdin.flush()

    def next(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith(MARK)
        return dict(json.loads(line.removeprefix(MARK)))

    def version(self) -> object:
        self.send("ping")
        return self.next()["version"]

    def connect(self) -> socket.socket:
        """Returns a connection of this user to the socket at which the agent listens."""
        for name in socket_names(self.secret):
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(name)
            except ConnectionRefusedError:
                connection.close()
                continue
            connection.settimeout(LIMIT_SECONDS)
            return connection
        raise AssertionError("the agent does not listen")


@pytest.fixture
def agent() -> Iterator[RunningAgent]:
    with ExitStack() as stack:
        yield RunningAgent(stack)


def memory_of(content: bytes, is_sealed: bool = True) -> int:
    memory = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.write(memory, content)
    if is_sealed:
        seal(memory)
    return memory


def test_workers_reach_the_agent_although_another_user_has_its_name(agent: RunningAgent) -> None:
    """The other user's process even knows the secret. It must not get a connection, because its user differs."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to start a process of another user")
    names = socket_names(agent.secret)
    ready, bound = get_context("fork").Pipe(duplex=False)
    other_user = get_context("fork").Process(target=bind_as_nobody, args=(names[:3], bound), daemon=True)
    other_user.start()
    try:
        assert ready.recv() == "bound"
        agent.start()
        StateAgentClient(1, agent.secret)
        assert agent.version() is None
    finally:
        other_user.kill()
        other_user.join()


def bind_as_nobody(names: list[str], bound: Any) -> None:
    os.setgid(65534)
    os.setuid(65534)
    servers = [socket.socket(socket.AF_UNIX) for _ in names]
    for name, server in zip(names, servers, strict=True):
        server.bind(name)
        server.listen(1)
    bound.send("bound")
    time.sleep(600)


def test_a_worker_does_not_connect_to_a_socket_of_another_user(as_other_user: AsOtherUser) -> None:
    """The process that listens belongs to root, and the worker that connects belongs to another user."""
    secret = new_secret()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(socket_names(secret)[0])
        server.listen()
        as_other_user(refuses_to_connect, secret)


def refuses_to_connect(secret: str) -> None:
    with pytest.raises(UnavailableError, match="belongs to the user with the number 0"):
        StateAgentClient(1, secret)


def test_a_connection_of_another_user_is_closed(agent: RunningAgent, as_other_user: AsOtherUser) -> None:
    agent.start()
    as_other_user(connection_is_closed, socket_names(agent.secret)[0])
    assert agent.version() is None


def connection_is_closed(name: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(LIMIT_SECONDS)
        connection.connect(name)
        assert connection.recv(1) == b""


def test_a_client_without_the_secret_gets_no_state(agent: RunningAgent) -> None:
    agent.start()
    with agent.connect() as connection, pytest.raises(ConnectionError):
        authenticate(connection, new_secret())
    with agent.connect() as connection:
        connection.sendall(encode("take") * 20)
        answer = connection.recv(1 << 16)
        assert b"stored" not in answer


@pytest.mark.parametrize("fault", ["not sealed", "another size", "no memory", "no descriptor", "no message"])
def test_wrong_memory_is_refused(fault: str, agent: RunningAgent, tmp_path: Path) -> None:
    agent.start()
    file = tmp_path / "file"
    file.write_bytes(b"state")
    memory = os.open(file, os.O_RDONLY) if fault == "no memory" else memory_of(b"state", fault != "not sealed")
    line = encode("store", version=[1, 1], size=4 if fault == "another size" else 5)
    with agent.connect() as connection:
        authenticate(connection, agent.secret)
        line = b'{"kind": 3, "version": {}}\n[]\n' if fault == "no message" else line
        socket.send_fds(connection, [line], [] if fault == "no descriptor" else [memory])
        assert connection.recv(1) == b""
    assert agent.version() is None
    os.close(memory)


def test_a_rank_that_is_an_infinite_number_is_refused(agent: RunningAgent) -> None:
    agent.start()
    with agent.connect() as connection:
        authenticate(connection, agent.secret)
        connection.sendall(b'{"kind": "begun", "rank": Infinity, "generation": 0}\n')
        assert connection.recv(1) == b""
    assert agent.version() is None


@pytest.mark.parametrize("updates", [False, True])
def test_a_stored_state_is_returned(updates: bool, agent: RunningAgent) -> None:
    """A host update may come first. The new rank 0 would begin training anew if it took the update for the answer."""
    agent.start()
    memory = memory_of(b"state")
    with agent.connect() as connection:
        authenticate(connection, agent.secret)
        socket.send_fds(connection, [encode("store", version=[1, 1], size=5)], [memory])
        if updates:
            wait_until(lambda: agent.version() == [1, 1], "the agent has no state")
            agent.send("hosts", stamp=1, result=2)
            assert agent.version() == [1, 1]  # the agent has passed on the update by now
        connection.sendall(encode("take"))
        answer, copy = _receive_answer(connection)
    assert answer == {"kind": "stored", "version": [1, 1], "size": 5}
    assert copy is not None
    check_memory(copy, 5)
    os.close(memory)
    os.close(copy)


def test_a_paused_agent_waits_without_a_limit() -> None:
    with ExitStack() as stack:
        paused = RunningAgent(stack, seconds=1)
        # Both messages are there before the agent begins to count.
        paused.send("hello", secret=paused.secret)
        paused.send("pause")
        assert paused.next()["kind"] == "here"
        other = RunningAgent(stack, seconds=1)
        assert other.process.wait(LIMIT_SECONDS) == 0
        assert paused.version() is None
