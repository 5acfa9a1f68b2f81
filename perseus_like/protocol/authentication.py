"""Challenge and response for the connections between processes of a job, in both directions.

Both ends of a connection know a secret that reached them another way: the environment, or a pipe. Each end proves that
it knows the secret, and neither sends it, so an impostor at the other end learns nothing that is of use elsewhere:

    listening end                                        connecting end
    32 random bytes: the listener's nonce          →
                                                   ←     32 random bytes: the nonce of the connecting end,
                                                         HMAC-SHA256(secret, "connecting" + both nonces)
    HMAC-SHA256(secret, "listening" + both nonces) →

Every message has a fixed length. The labels keep an answer from being sent back to the end that made it. What follows
the handshake is neither encrypted nor protected against a change on the way. `csrc/bootstrap/authentication.h` has
the same protocol.

For a process that listens, in any event loop:

    listener = AuthenticatedListener([a_listening_socket], secret, expected=4)
    selector.register(listener, EVENT_READ)             # it has a fileno()
    for connection in listener.accept():                # whenever it is readable; never blocks
        ...                                             # a non-blocking socket, whose handshake is complete
    listener.close()                                    # as soon as all expected connections are there

For a process that connects and may block:

    connection = socket.create_connection(address, timeout)
    authenticate(connection, secret)                    # AuthenticationError (a ConnectionError), or returns

For a process that connects in an event loop of its own: `Handshake(secret, is_listener=False)`.

`secret` comes from `new_secret()`: one for each listener. It must not appear on a command line or in a log. On Unix
sockets both ends also check that the other end belongs to the same user.

This module needs the standard library only. A program that is started by its path, as `python -IS program.py`, cannot
import the package and imports this file instead:

    if TYPE_CHECKING or __package__:
        from ...protocol.authentication import Handshake
    else:
        sys.path.append(str(Path(__file__).resolve().parents[2] / "protocol"))
        from authentication import Handshake
"""

from __future__ import annotations

import ctypes
import errno
import hmac
import os
import select
import socket
import struct
import time
from collections.abc import Sequence

HANDSHAKE_SECONDS = 10.0
_NONCE_BYTES = 32
_DIGEST_BYTES = 32
# Connections without a finished handshake that a listener keeps, in addition to those that are expected.
_SPARE_CONNECTIONS = 64
# One `accept` takes at most this many connections from the queue, so that the caller's loop also serves others.
_BATCH = 64
# After the process ran out of descriptors, the listener waits for this long.
_PAUSE_SECONDS = 0.2
_OUT_OF_DESCRIPTORS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class AuthenticationError(ConnectionError):
    """The other end of a connection did not prove that it belongs to this job."""


class HandshakeClosedError(AuthenticationError):
    """The other end closed the connection during the handshake, as a listener does that has too many of them."""


def new_secret() -> str:
    """Returns 256 random bits as text."""
    return os.urandom(32).hex()


class Handshake:
    """One end of one handshake, without any input or output of its own.

    Send `opening` (empty for the connecting end). Then, until `missing` is 0, receive at most `missing` bytes, pass
    them to `take`, and send what it returns. Bytes that follow the handshake are never asked for.
    """

    def __init__(self, secret: str, *, is_listener: bool) -> None:
        if not secret:
            raise ValueError("the secret of a handshake is empty")
        self._secret = secret.encode(errors="surrogateescape")
        self._is_listener = is_listener
        self._nonce = os.urandom(_NONCE_BYTES)
        self._listeners_nonce = self._nonce if is_listener else b""
        self._received = b""
        self.opening = self._nonce if is_listener else b""
        self.missing = _NONCE_BYTES + _DIGEST_BYTES if is_listener else _NONCE_BYTES

    def take(self, data: bytes) -> bytes:
        """Takes received bytes; returns what to send, which may be nothing. Raises AuthenticationError.

        Empty `data` means that the other end closed the connection.
        """
        if not data:
            raise HandshakeClosedError("the other end closed the connection during the handshake")
        if len(data) > self.missing:
            raise ValueError(f"the handshake takes {self.missing} more bytes, not {len(data)}")
        self._received += data
        self.missing -= len(data)
        if self.missing:
            return b""
        received, self._received = self._received, b""
        return self._take_answer(received) if self._is_listener else self._take_as_connecting(received)

    def _take_answer(self, received: bytes) -> bytes:
        nonces = self._nonce + received[:_NONCE_BYTES]
        self._check(received[_NONCE_BYTES:], b"connecting", nonces)
        return self._digest(b"listening", nonces)

    def _take_as_connecting(self, received: bytes) -> bytes:
        if not self._listeners_nonce:
            self._listeners_nonce = received
            self.missing = _DIGEST_BYTES
            return self._nonce + self._digest(b"connecting", received + self._nonce)
        self._check(received, b"listening", self._listeners_nonce + self._nonce)
        return b""

    def _digest(self, label: bytes, nonces: bytes) -> bytes:
        return hmac.digest(self._secret, label + nonces, "sha256")

    def _check(self, received: bytes, label: bytes, nonces: bytes) -> None:
        if not hmac.compare_digest(received, self._digest(label, nonces)):
            raise AuthenticationError("the other end does not know the secret of this job")


def authenticate(connection: socket.socket, secret: str, seconds: float = HANDSHAKE_SECONDS) -> None:
    """Runs the handshake as the end that has connected. Blocks for at most `seconds`.

    Raises AuthenticationError, or another OSError of the connection. Afterwards the connection has the timeout that it
    had before.
    """
    check_user(connection)
    handshake = Handshake(secret, is_listener=False)
    deadline = time.monotonic() + seconds
    timeout = connection.gettimeout()
    try:
        while handshake.missing:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            connection.sendall(handshake.take(connection.recv(handshake.missing)))
    except TimeoutError as error:
        raise AuthenticationError(f"the other end did not finish the handshake within {seconds:g} s") from error
    finally:
        connection.settimeout(timeout)


def check_user(connection: socket.socket) -> None:
    """Raises AuthenticationError if the other end of a Unix socket belongs to another user. Other sockets pass."""
    if connection.family != socket.AF_UNIX:
        return
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if uid != os.geteuid():
        raise AuthenticationError(f"the other end belongs to the user with the number {uid}, not to {os.geteuid()}")


class AuthenticatedListener:
    """Listening sockets, and the connections whose handshake is not finished.

    It is readable, as a socket is, whenever `accept` has something to do. Unknown peers cannot exhaust the process:

    - A connection whose handshake is not finished within `seconds` is closed.
    - At most 64 + 4 * `expected` connections wait for their handshake; a new one displaces the oldest.
    - When the process is out of descriptors, a new connection displaces the oldest, or waits; nothing spins.
    """

    def __init__(
        self, listeners: Sequence[socket.socket], secret: str, *, expected: int, seconds: float = HANDSHAKE_SECONDS
    ) -> None:
        self._secret = secret
        self._limit = _SPARE_CONNECTIONS + 4 * expected
        self._seconds = seconds
        self._listeners = {listener.fileno(): listener for listener in listeners}
        self._waiting: dict[int, _Waiting] = {}  # the oldest first
        self._resumes: float | None = None  # the time at which listeners are polled again
        self._timer = _Timer()
        self._epoll = select.epoll()
        self._epoll.register(self._timer.fileno(), select.EPOLLIN)
        for listener in listeners:
            listener.setblocking(False)
        self._poll_listeners(True)

    def fileno(self) -> int:
        """The descriptor to poll for reading."""
        return self._epoll.fileno()

    def accept(self) -> list[socket.socket]:
        """Serves whatever is ready. Returns the connections that finished their handshake; they do not block."""
        finished = []
        for descriptor, _ in self._epoll.poll(0):
            if descriptor in self._listeners:
                self._accept_from(self._listeners[descriptor])
            elif descriptor in self._waiting and (connection := self._advance(self._waiting[descriptor])):
                finished.append(connection)
        self._do_what_is_due()
        return finished

    def close(self) -> None:
        """Closes the listening sockets and all connections whose handshake is not finished."""
        for waiting in list(self._waiting.values()):
            self._drop(waiting)
        for listener in self._listeners.values():
            listener.close()
        self._epoll.close()
        self._timer.close()

    def _accept_from(self, listener: socket.socket) -> None:
        for _ in range(0 if self._resumes else _BATCH):
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in _OUT_OF_DESCRIPTORS:
                    continue  # this connection ended in the queue
                if not self._waiting:
                    self._resumes = time.monotonic() + _PAUSE_SECONDS
                    self._poll_listeners(False)
                    return
                self._drop_oldest()
                continue
            self._begin(connection)

    def _begin(self, connection: socket.socket) -> None:
        if len(self._waiting) == self._limit:
            self._drop_oldest()
        connection.setblocking(False)
        waiting = _Waiting(connection, Handshake(self._secret, is_listener=True), time.monotonic() + self._seconds)
        try:
            check_user(connection)
            _send(connection, waiting.handshake.opening)
            self._epoll.register(connection.fileno(), select.EPOLLIN)
        except OSError:
            connection.close()
        else:
            self._waiting[connection.fileno()] = waiting

    def _advance(self, waiting: _Waiting) -> socket.socket | None:
        connection, handshake = waiting.connection, waiting.handshake
        try:
            _send(connection, handshake.take(connection.recv(handshake.missing)))
        except BlockingIOError:
            return None
        except OSError:
            self._drop(waiting)
            return None
        if handshake.missing:
            return None
        self._forget(waiting)
        return connection

    def _drop_oldest(self) -> None:
        self._drop(next(iter(self._waiting.values())))

    def _drop(self, waiting: _Waiting) -> None:
        self._forget(waiting)
        waiting.connection.close()

    def _forget(self, waiting: _Waiting) -> None:
        del self._waiting[waiting.connection.fileno()]
        self._epoll.unregister(waiting.connection.fileno())

    def _poll_listeners(self, is_on: bool) -> None:
        for descriptor in self._listeners:
            if is_on:
                self._epoll.register(descriptor, select.EPOLLIN)
            else:
                self._epoll.unregister(descriptor)

    def _do_what_is_due(self) -> None:
        """Closes connections that took too long, ends a pause, and sets the timer for the next of these events."""
        now = time.monotonic()
        while self._waiting and (oldest := next(iter(self._waiting.values()))).deadline <= now:
            self._drop(oldest)
        if self._resumes is not None and self._resumes <= now:
            self._resumes = None
            self._poll_listeners(True)
        times = [next(iter(self._waiting.values())).deadline] if self._waiting else []
        times += [self._resumes] if self._resumes is not None else []
        self._timer.set(max(0.001, min(times) - now) if times else 0.0)


class _Waiting:
    """A connection whose handshake is not finished."""

    def __init__(self, connection: socket.socket, handshake: Handshake, deadline: float) -> None:
        self.connection = connection
        self.handshake = handshake
        self.deadline = deadline


class _Timer:
    """A timerfd, which is readable once its time is over. (Python has had one of its own since 3.13 only.)"""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor: int = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC | os.O_NONBLOCK)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "cannot make a timer")

    def fileno(self) -> int:
        return self._descriptor

    def set(self, seconds: float) -> None:
        """Sets the timer anew, which also makes it unreadable; 0 stops it."""
        whole, part = divmod(round(seconds * 1e9), 10**9)
        specification = struct.pack("4l", 0, 0, whole, part)
        if self._libc.timerfd_settime(self._descriptor, 0, specification, None) != 0:
            raise OSError(ctypes.get_errno(), "cannot set a timer")

    def close(self) -> None:
        os.close(self._descriptor)


def _send(connection: socket.socket, data: bytes) -> None:
    """Sends a message of the handshake, which always fits into the buffer of a connection that was just accepted."""
    if connection.send(data, socket.MSG_NOSIGNAL) != len(data):
        raise AuthenticationError("the other end does not receive")
