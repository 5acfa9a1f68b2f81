"""Tests of the handshake of connections to the launcher and to state agents. Either peer may be unauthenticated."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from perseus_like.protocol import authentication
from perseus_like.protocol.authentication import (
    AuthenticatedListener,
    AuthenticationError,
    Handshake,
    authenticate,
    new_secret,
)
from tests.job import LIMIT_SECONDS, run_to_end

from .conftest import AsOtherUser, Serve, SilentConnections

SECRET = new_secret()
GARBAGE = {
    "another protocol": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 4,
    "other characters": "ÄÖÜ gehört nicht dazu ÄÖÜ".encode("latin-1") * 4,
    "zeros": bytes(64),
    "too much": b"\xff" * 5000,
    "the secret": SECRET.encode() * 2,
}


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        yield listener


def connect(listener: socket.socket) -> socket.socket:
    return socket.create_connection(listener.getsockname(), LIMIT_SECONDS)


def is_closed(connection: socket.socket) -> bool:
    """Waits for the other end to close the connection."""
    connection.settimeout(LIMIT_SECONDS)
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(4096):
            pass
    return True


def test_both_ends_that_know_the_secret_pass(listening: socket.socket, serve: Serve) -> None:
    served = serve(AuthenticatedListener([listening], SECRET, expected=1))
    with connect(listening) as connection:
        authenticate(connection, SECRET)
        connection.sendall(b"hello")
        assert served.wait_for(1)
        other = served.accepted[0]
        other.settimeout(LIMIT_SECONDS)
        assert other.recv(100) == b"hello"


def test_a_handshake_of_single_bytes_passes(listening: socket.socket, serve: Serve) -> None:
    served = serve(AuthenticatedListener([listening], SECRET, expected=1))
    handshake = Handshake(SECRET, is_listener=False)
    with connect(listening) as connection:
        while handshake.missing:
            for byte in handshake.take(connection.recv(1)):
                connection.send(bytes([byte]))
        assert served.wait_for(1)


def test_a_wrong_secret_is_refused(listening: socket.socket, serve: Serve) -> None:
    served = serve(AuthenticatedListener([listening], SECRET, expected=1))
    with connect(listening) as connection, pytest.raises(AuthenticationError):
        authenticate(connection, new_secret())
    assert served.accepted == []


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_is_refused_and_other_connections_pass(listening: socket.socket, serve: Serve, garbage: str) -> None:
    served = serve(AuthenticatedListener([listening], SECRET, expected=1))
    with connect(listening) as client, connect(listening) as connection:
        client.sendall(GARBAGE[garbage])
        assert is_closed(client)
        authenticate(connection, SECRET)
        assert served.wait_for(1)


def test_a_listener_without_the_secret_does_not_learn_it_and_fails(listening: socket.socket) -> None:
    received = b""

    def answer_as_impostor() -> None:
        nonlocal received
        connection, _ = listening.accept()
        with connection:
            connection.sendall(os.urandom(32))
            while len(received) < 64:
                received += connection.recv(4096)
            connection.sendall(received[32:])  # the client's own answer, sent back

    impostor = threading.Thread(target=answer_as_impostor)
    impostor.start()
    with connect(listening) as connection, pytest.raises(AuthenticationError, match="does not know the secret"):
        authenticate(connection, SECRET)
    impostor.join()
    assert SECRET.encode() not in received
    assert bytes.fromhex(SECRET) not in received


def test_an_answer_to_one_challenge_does_not_pass_another() -> None:
    honest, listener, other = (
        Handshake(SECRET, is_listener=False),
        Handshake(SECRET, is_listener=True),
        Handshake(SECRET, is_listener=True),
    )
    answer = honest.take(listener.opening)
    with pytest.raises(AuthenticationError):
        other.take(answer)
    assert honest.take(listener.take(answer)) == b""
    assert honest.missing == listener.missing == 0


def test_a_connection_without_a_finished_handshake_is_closed(listening: socket.socket, serve: Serve) -> None:
    serve(AuthenticatedListener([listening], SECRET, expected=1, seconds=0.1))
    with connect(listening) as silent, connect(listening) as half:
        half.sendall(b"half a handshake")
        assert is_closed(silent)
        assert is_closed(half)


def test_a_silent_listener_is_an_error_after_the_deadline(listening: socket.socket) -> None:
    with connect(listening) as connection, pytest.raises(AuthenticationError, match=r"within 0\.1 s"):
        authenticate(connection, SECRET, 0.1)


def test_thousands_of_silent_connections_do_not_block_others(
    listening: socket.socket, serve: Serve, silent_connections: SilentConnections
) -> None:
    served = serve(AuthenticatedListener([listening], SECRET, expected=1))
    for count in range(1, 31):
        silent_connections(listening.getsockname(), 100)
        with connect(listening) as connection:
            authenticate(connection, SECRET)
            assert served.wait_for(count)


def test_a_listener_without_free_descriptors_waits() -> None:
    program = Path(__file__).with_name("out_of_descriptors.py")
    result = run_to_end([sys.executable, program])
    assert result.stdout == "accepted\n", result.stderr


def test_a_connection_of_another_user_is_closed(serve: Serve, as_other_user: AsOtherUser) -> None:
    name = "\0perseus-test-" + new_secret()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(name)
        listening.listen()
        served = serve(AuthenticatedListener([listening], SECRET, expected=1))
        as_other_user(_connection_is_closed, name)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(name)
            authenticate(connection, SECRET)
            assert served.wait_for(1)


def _connection_is_closed(name: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(name)
        connection.settimeout(LIMIT_SECONDS)
        assert connection.recv(100) == b""


def test_a_socket_of_another_user_is_refused(as_other_user: AsOtherUser) -> None:
    name = "\0perseus-test-" + new_secret()
    ready, started = socket.socketpair()
    impostor = threading.Thread(target=as_other_user, args=(_listen_as_impostor, name, started))
    impostor.start()
    assert ready.recv(1)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(name)
        with pytest.raises(AuthenticationError, match="belongs to the user"):
            authenticate(connection, SECRET)
    impostor.join()


def _listen_as_impostor(name: str, started: socket.socket) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(name)
        listening.listen()
        started.send(b".")
        connection, _ = listening.accept()
        assert connection.recv(100) == b""


def test_the_module_imports_the_standard_library_alone() -> None:
    folder = Path(authentication.__file__).parent
    program = f"import sys; sys.path.append({str(folder)!r}); import authentication; print(sorted(sys.modules))"
    shown = subprocess.run([sys.executable, "-IS", "-c", program], capture_output=True, text=True, check=True).stdout
    assert "numpy" not in shown
    assert "perseus_like" not in shown


def test_a_secret_must_not_be_empty() -> None:
    with pytest.raises(ValueError, match="empty"):
        Handshake("", is_listener=True)
