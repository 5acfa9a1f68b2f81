"""The rendezvous of ranks without a store or an MPI: an allgather of bytes over TCP, through a listener of rank 0.

Rank 0 listens at one of the ports of `Place` until all ranks are connected. Both ends of a connection prove that they
know the secret of the job (`protocol/authentication.py`). Then both ends send lines of JSON (`protocol/messages.py`).
Nothing that arrives is unpickled.

    other ranks                                 rank 0
    gather: this rank, and its bytes         →
                                                ← gathered: the bytes of all ranks
    failed: this rank cannot continue        →
                                                ← failed: the job cannot continue, or this rank is refused
"""

from __future__ import annotations

import base64
import contextlib
import errno
import logging
import selectors
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .errors import PeerLostError, TimedOutError, UnavailableError
from .protocol.authentication import HANDSHAKE_SECONDS, AuthenticatedListener, AuthenticationError, authenticate
from .protocol.messages import Message, Reader, encode

SECRET_FILE = "PERSEUS_SECRET_FILE"
_log = logging.getLogger("perseus_like")

_PORTS = 4  # ports that are tried, because other programs may have the first ones
_LONGEST_MESSAGE = 1 << 23  # to rank 0, in bytes; messages of rank 0 are longer, since they have the bytes of all ranks
_SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 1.0  # until a rank tries again to reach rank 0
_GRACE_SECONDS = 5.0  # rank 0 reports who is missing, so the others give up a little later
_ERRORS: dict[str, type[Exception]] = {each.__name__: each for each in (TimedOutError, PeerLostError, UnavailableError)}


@dataclass(frozen=True)
class Place:
    """The address at which ranks meet: rank 0's host, the port before the first one, and the name of the job."""

    host: str
    port: int
    job: str
    variable: str = "MASTER_ADDR"  # from which the host was read
    may_be_early: bool = False  # the name of the host may become known later
    secret: str = ""  # the launcher's, if it has given one

    @property
    def ports(self) -> list[int]:
        return [1024 + (self.port + number - 1024) % (65536 - 1024) for number in range(1, _PORTS + 1)]

    def __str__(self) -> str:
        return f"{self.host}, ports {self.ports[0]} to {self.ports[-1]}"

    @property
    def to_check(self) -> str:
        """Returns what may keep ranks from meeting although they run, as the end of an error text."""
        return (
            "that no firewall is between the hosts" if self.secret else f"that {SECRET_FILE} is the same on all ranks"
        )

    def addresses(self, deadline: float) -> list[tuple[socket.AddressFamily, str]]:
        """Returns the addresses of the host. UnavailableError if its name is not known."""
        while True:
            try:
                found = socket.getaddrinfo(self.host, None, type=socket.SOCK_STREAM)
                return list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found))
            except (OSError, UnicodeError) as error:
                is_early = self.may_be_early or error.args[0] == socket.EAI_AGAIN
                if not is_early or time.monotonic() > deadline:
                    raise UnavailableError(
                        f"init(): this host does not know the name {self.host!r}, which {self.variable} has ({error}); "
                        "set MASTER_ADDR to the host of rank 0, and MASTER_PORT, on all ranks"
                    ) from error
            time.sleep(_SHORTEST_PAUSE_SECONDS)


class TcpRendezvous:
    """A function that returns every rank's bytes, by rank. Collective.

    Raises on all ranks: TimedOutError if ranks are missing, PeerLostError if a rank has ended, UnavailableError if a
    rank has called `fail`, or if the address cannot be used.
    """

    has_warned = False  # in this process

    def __init__(self, rank: int, size: int, place: Place, seconds: float, secret_file: str = "") -> None:
        self._rank = rank
        self._size = size
        self._place = place
        self._seconds = seconds
        self._is_over = False  # the other ranks know the reason
        self._peers: dict[int, _Peer] = {}  # by rank: rank 0 has all others, and these have rank 0
        self._answers: list[Message] = []  # of rank 0, at another rank
        self._listener: AuthenticatedListener | None = None
        self._listens_at = ""
        secret = place.secret or (_secret_in(secret_file) if secret_file else "")
        self._secret = f"{secret} {place.job}"  # jobs with the same file do not meet each other
        if rank == 0:
            self._listen(has_secret=bool(secret))

    def __call__(self, mine: bytes) -> list[bytes]:
        return self._collect(mine) if self._rank == 0 else self._contribute(mine)

    def fail(self, error: Exception) -> None:
        """Reports to the other ranks that this rank cannot continue, unless they know."""
        self._end(
            PeerLostError if isinstance(error, PeerLostError) else UnavailableError,
            f"init(): rank {self._rank} failed to start. {error}",
        )
        self.close()

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for peer in self._peers.values():
            peer.connection.close()

    # Rank 0.

    def _listen(self, has_secret: bool) -> None:
        """Listens at the address of this job's host; with a secret, at all addresses."""
        everywhere = [(socket.AF_INET, ""), (socket.AF_INET6, "")]
        addresses = everywhere if has_secret else self._place.addresses(time.monotonic() + self._seconds)
        listening = _listen_at(addresses, self._place)
        self._listener = AuthenticatedListener(listening, self._secret, expected=self._size - 1)
        self._listens_at = ", ".join("{} port {}".format(*each.getsockname()) for each in listening)
        if not has_secret and not TcpRendezvous.has_warned:
            TcpRendezvous.has_warned = True
            _log.warning(
                "ranks meet at %s without a secret: whoever reaches this port before all ranks have met can take the "
                "place of one. Set %s on all ranks to a file with a secret, or start the job with perseusrun",
                self._listens_at,
                SECRET_FILE,
            )

    def _collect(self, mine: bytes) -> list[bytes]:
        deadline = time.monotonic() + self._seconds
        pieces = {0: mine}
        with selectors.DefaultSelector() as selector:
            for peer in self._peers.values():
                selector.register(peer.connection, selectors.EVENT_READ, peer)
            if self._listener is not None:
                selector.register(self._listener, selectors.EVENT_READ)
            while len(pieces) < self._size:
                is_late = time.monotonic() >= deadline
                for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                    if key.data is None:
                        self._accept(selector)
                    elif not self._read(key.data, pieces):
                        selector.unregister(key.fileobj)
                        key.data.connection.close()
                if is_late and len(pieces) < self._size:
                    raise self._end(TimedOutError, self._missing_text(set(range(self._size)) - set(pieces)))
            for key in selector.get_map().values():
                if key.data is not None and key.data.rank < 0:
                    key.data.connection.close()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        parts = [pieces[rank] for rank in range(self._size)]
        answer = encode("gathered", all=[base64.b64encode(part).decode() for part in parts])
        if late := _send(answer, self._peers.values(), deadline + _GRACE_SECONDS):
            raise self._end(PeerLostError, f"init(): {late[0]} did not take rank 0's answer while the job started")
        return parts

    def _accept(self, selector: selectors.BaseSelector) -> None:
        assert self._listener is not None
        for connection in self._listener.accept():
            if len(selector.get_map()) > 2 * self._size + 64:
                connection.close()  # others without a rank have come before it
            else:
                selector.register(connection, selectors.EVENT_READ, _Peer(connection))

    def _read(self, peer: _Peer, pieces: dict[int, bytes]) -> bool:
        """Reads what a connection has. Returns False if it is none of a rank."""
        try:
            for message in peer.receive():
                if peer.rank < 0:
                    self._admit(peer, message)
                if message["kind"] == "failed":
                    raise self._end(_class_of(message), str(message["text"]))
                if message["kind"] != "gather" or peer.rank in pieces:
                    raise ValueError(f"it has sent {str(message['kind'])[:20]!r} out of turn")
                pieces[peer.rank] = base64.b64decode(message["bytes"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            if peer.rank < 0:
                return False
            raise self._end(PeerLostError, f"init(): {peer} has ended while the job started ({error})") from error
        return True

    def _admit(self, peer: _Peer, message: Message) -> None:
        """Takes the rank that a connection has sent. ValueError if rank 0 refuses it."""
        rank, size = int(message["rank"]), int(message["size"])
        if size == self._size and 0 < rank < size and rank not in self._peers:
            peer.rank = rank
            self._peers[rank] = peer
            return
        reason = f"another process has this rank ({self._peers[rank]})" if rank in self._peers else "there is none"
        text = (
            f"init(): rank 0 does not take rank {rank} of {size} into its job of {self._size} ranks: {reason}. Give "
            "each process a rank of its own, and each job another MASTER_PORT"
        )
        _send(encode("failed", error=UnavailableError.__name__, text=text), [peer], 0.0)
        raise ValueError(text)

    # The other ranks.

    def _contribute(self, mine: bytes) -> list[bytes]:
        deadline = time.monotonic() + self._seconds + _GRACE_SECONDS
        if not self._peers:
            self._peers[0] = self._connect(deadline)
        peer = self._peers[0]
        # If rank 0 is gone, it may have sent the reason before.
        _send(self._message("gather", bytes=base64.b64encode(mine).decode()), [peer], deadline)
        try:
            while not self._answers:
                peer.connection.settimeout(max(0.001, deadline - time.monotonic()))
                self._answers += peer.receive()
        except TimeoutError:
            raise TimedOutError(self._missing_text({0})) from None
        except (OSError, ValueError) as error:
            self._is_over = True
            raise PeerLostError(f"init(): {peer} has ended while the job started ({error})") from error
        answer = self._answers.pop(0)
        if answer["kind"] != "gathered":
            self._is_over = True
            raise _class_of(answer)(str(answer.get("text")))
        return [base64.b64decode(part) for part in answer["all"]]

    def _connect(self, deadline: float) -> _Peer:
        """Returns a connection to rank 0's listener, which may not be there yet."""
        self._place.addresses(deadline)
        problem: OSError | None = None
        pause = _SHORTEST_PAUSE_SECONDS
        while time.monotonic() < deadline:
            for port in self._place.ports:
                limit = max(0.1, min(HANDSHAKE_SECONDS, deadline - time.monotonic()))
                connection = None
                try:
                    connection = socket.create_connection((self._place.host, port), limit)
                    authenticate(connection, self._secret, limit)
                    return _Peer(connection, 0)
                except OSError as error:
                    problem = problem if isinstance(problem, AuthenticationError) else error
                    if connection is not None:
                        connection.close()
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        self._is_over = True
        raise TimedOutError(
            f"init(): rank {self._rank} of {self._size} does not reach rank 0 at {self._place} within "
            f"{self._seconds:g} s (PERSEUS_START_TIMEOUT); the last attempt: {problem}. Check that rank 0 runs, and "
            f"{self._place.to_check}"
        )

    # All ranks.

    def _message(self, kind: str, **content: str) -> bytes:
        return encode(kind, rank=self._rank, size=self._size, **content)

    def _end(self, kind: type[Exception], text: str) -> Exception:
        """Reports an error to the ranks that are connected, unless they know. Returns it, for this rank to raise."""
        if not self._is_over:
            self._is_over = True
            deadline = time.monotonic() + _GRACE_SECONDS
            _send(self._message("failed", error=kind.__name__, text=text), self._peers.values(), deadline)
        return kind(text)

    def _missing_text(self, missing: set[int]) -> str:
        names = ", ".join(map(str, sorted(missing)[:20])) + (", …" if len(missing) > 20 else "")
        where = f" Rank 0 listens at {self._listens_at}." if self._listens_at else ""
        return (
            f"init(): after {self._seconds:g} s (PERSEUS_START_TIMEOUT), ranks of {self._size} are missing: {names}."
            f"{where} Check that they run, that they reach this address"
            f"{'' if self._place.secret else ' (MASTER_ADDR sets another)'}, and {self._place.to_check}"
        )


class _Peer:
    """The connection to another rank."""

    def __init__(self, connection: socket.socket, rank: int = -1) -> None:
        self.connection = connection
        self.rank = rank  # −1: not known yet
        self._reader = Reader() if rank == 0 else Reader(_LONGEST_MESSAGE)
        self._address = "an unknown address"
        with contextlib.suppress(OSError):  # it has ended, which `receive` reports
            self._address = connection.getpeername()[0]
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __str__(self) -> str:
        return f"rank {self.rank} at {self._address}"

    def receive(self) -> list[Message]:
        """Returns the messages that have arrived."""
        data = self.connection.recv(1 << 16)
        if not data:
            raise ConnectionError("it has closed the connection")
        return self._reader.take(data)


def _send(data: bytes, peers: Iterable[_Peer], deadline: float) -> list[_Peer]:
    """Sends to all of these at the same time. Returns those that are gone, or do not take the bytes in time."""
    left = dict.fromkeys(peers, memoryview(data))
    with selectors.DefaultSelector() as selector:
        for peer in left:
            selector.register(peer.connection, selectors.EVENT_WRITE, peer)
        while selector.get_map() and (ready := selector.select(max(0.0, deadline - time.monotonic()))):
            for peer in (key.data for key, _ in ready):
                with contextlib.suppress(OSError):
                    left[peer] = left[peer][peer.connection.send(left[peer]) :]
                    if left[peer]:
                        continue
                    del left[peer]
                selector.unregister(peer.connection)
    return list(left)


def _class_of(failed: Message) -> type[Exception]:
    kind: type[Exception] = _ERRORS.get(str(failed.get("error")), UnavailableError)
    return kind


def _secret_in(path: str) -> str:
    try:
        if secret := Path(path).read_text(errors="surrogateescape").strip():
            return secret
        problem = "it is empty"
    except OSError as error:
        problem = str(error)
    raise UnavailableError(
        f"init(): there is no secret in {SECRET_FILE}={path}: {problem}; write one into it, on all hosts the same"
    )


def _listen_at(addresses: list[tuple[socket.AddressFamily, str]], place: Place) -> list[socket.socket]:
    """Listens at those of these addresses that this host has, at the first port that is free at all of them."""
    for port in place.ports:
        servers = [_server(family, address, port) for family, address in addresses]
        sockets = [each for each in servers if isinstance(each, socket.socket)]
        problems = [each for each in servers if isinstance(each, OSError)]
        if sockets and not any(problem.errno == errno.EADDRINUSE for problem in problems):
            return sockets
        for listening in sockets:
            listening.close()
    raise UnavailableError(
        f"init(): rank 0 cannot listen at {place} ({problems[-1]}); on all ranks, set MASTER_ADDR to an address of "
        f"rank 0's host and MASTER_PORT to another number, or set {SECRET_FILE}, with which it listens at all addresses"
    )


def _server(family: socket.AddressFamily, address: str, port: int) -> socket.socket | OSError:
    try:
        return socket.create_server((address, port), family=family, backlog=1024)
    except OSError as error:
        return error
