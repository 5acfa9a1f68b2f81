"""Tests the rendezvous over TCP, with ranks that are threads."""

from __future__ import annotations

import contextlib
import logging
import random
import select
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perseus_like import tcp_rendezvous
from perseus_like.errors import PeerLostError, TimedOutError, UnavailableError
from perseus_like.protocol.authentication import AuthenticatedListener, authenticate
from perseus_like.protocol.messages import encode
from perseus_like.tcp_rendezvous import SECRET_FILE, Place, TcpRendezvous
from tests.job import LIMIT_SECONDS

Rank = Callable[..., TcpRendezvous]
Begin = Callable[..., "Future[list[bytes]]"]


@pytest.fixture
def place() -> Place:
    """Returns an address with free ports below those that Linux gives to the connections of other tests."""
    for port in random.sample(range(10000, 30000), 1000):
        found = Place("127.0.0.1", port, "a job")
        with contextlib.ExitStack() as sockets, contextlib.suppress(OSError):
            for each in found.ports:
                sockets.enter_context(socket.create_server(("127.0.0.1", each)))
            return found
    pytest.fail("no four free ports in a row")


@pytest.fixture
def rank(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rank]:
    """Returns a function that makes the rendezvous of a rank: `rank(0, 2)` is rank 0 of 2."""
    monkeypatch.setattr(TcpRendezvous, "has_warned", False)
    monkeypatch.setattr(tcp_rendezvous, "_GRACE_SECONDS", 3.0)
    made = []

    def make(number: int, size: int, seconds: float = LIMIT_SECONDS, secret_file: str = "") -> TcpRendezvous:
        made.append(TcpRendezvous(number, size, place, seconds, secret_file))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def begin(rank: Rank) -> Iterator[Begin]:
    """Returns a function that starts the first round of a rank, on a thread."""
    with ThreadPoolExecutor(4) as threads:
        yield lambda number, size, seconds=LIMIT_SECONDS: threads.submit(
            lambda: rank(number, size, seconds)(bytes([number]))
        )


def test_all_ranks_get_all_bytes(rank: Rank) -> None:
    rounds = [bytes([number]) * length for number, length in enumerate([5, 0, 1 << 20])]

    def run(number: int) -> list[list[bytes]]:
        rendezvous = rank(number, 4)
        return [rendezvous(bytes([number]) + each) for each in rounds]

    with ThreadPoolExecutor(4) as threads:
        for result in threads.map(run, range(4)):
            assert result == [[bytes([number]) + each for number in range(4)] for each in rounds]


def test_the_error_names_the_missing_ranks(begin: Begin) -> None:
    for future in [begin(number, 4, 3.0) for number in (0, 1)]:
        with pytest.raises(TimedOutError, match=r"ranks of 4 are missing: 2, 3\. Rank 0 listens at 127\.0\.0\.1 port"):
            future.result()


def test_a_rank_that_does_not_reach_rank_0(begin: Begin) -> None:
    with pytest.raises(TimedOutError, match=r"rank 1 of 2 does not reach rank 0 at 127\.0\.0\.1, ports .*refused"):
        begin(1, 2, 0.1).result()


def test_a_rank_is_taken_once(begin: Begin) -> None:
    first = begin(0, 3)
    twins = {begin(1, 3), begin(1, 3)}
    refused = wait(twins, return_when=FIRST_COMPLETED).done.pop()
    with pytest.raises(UnavailableError, match=r"rank 1 of 3 .*another process has this rank"):
        refused.result()
    for future in (first, begin(2, 3), *(twins - {refused})):
        assert future.result() == [b"\0", b"\1", b"\2"]


def test_a_rank_of_another_size_is_refused(begin: Begin) -> None:
    first = begin(0, 2)
    with pytest.raises(UnavailableError, match="rank 2 of 3 into its job of 2 ranks"):
        begin(2, 3).result()
    assert begin(1, 2).result() == first.result() == [b"\0", b"\1"]


def test_ranks_with_the_same_secret_meet_without_a_warning(
    rank: Rank, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "secret").write_text("of this job\n")
    first, second = [rank(number, 2, secret_file=str(tmp_path / "secret")) for number in range(2)]
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(first, b"0")
        assert second(b"1") == [b"0", b"1"] == other.result()
    assert not caplog.records


def test_a_rank_with_another_secret_is_not_admitted(rank: Rank, tmp_path: Path) -> None:
    ranks = []
    for number, secret in enumerate(["of this job", "of another job"]):
        (tmp_path / secret).write_text(secret)
        ranks.append(rank(number, 2, 1.0, str(tmp_path / secret)))
    with ThreadPoolExecutor(2) as threads:
        first, second = [threads.submit(each, b"") for each in ranks]
        with pytest.raises(TimedOutError, match=f"are missing: 1.*{SECRET_FILE}"):
            first.result()
        with pytest.raises(TimedOutError, match=f"does not reach rank 0.*{SECRET_FILE}"):
            second.result()


def test_without_a_secret_there_is_one_warning(rank: Rank, caplog: pytest.LogCaptureFixture) -> None:
    for number in (0, 1, 0):
        rank(number, 2).close()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "127.0.0.1 port" in caplog.text
    assert SECRET_FILE in caplog.text


@pytest.mark.parametrize("content", [None, " \n"])
def test_a_secret_that_cannot_be_read_is_an_error(rank: Rank, content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "secret").write_text(content)
    with pytest.raises(UnavailableError, match=SECRET_FILE):
        rank(1, 2, secret_file=str(tmp_path / "secret"))


def test_a_rank_that_fails_reports_it_to_the_others(rank: Rank) -> None:
    def run(number: int) -> list[bytes]:
        rendezvous = rank(number, 3)
        rendezvous(b"")
        if number == 1:
            rendezvous.fail(ValueError("it has no disk"))
            return []
        return rendezvous(b"")

    with ThreadPoolExecutor(3) as threads:
        first, _, last = [threads.submit(run, number) for number in range(3)]
        for future in (first, last):
            with pytest.raises(UnavailableError, match=r"rank 1 failed to start\. it has no disk"):
                future.result()


def test_a_failure_that_arrives_together_with_an_answer_is_reported(place: Place, rank: Rank) -> None:
    server = socket.create_server(("127.0.0.1", place.ports[0]))
    listener = AuthenticatedListener([server], f" {place.job}", expected=1)
    second = rank(1, 2)
    with ThreadPoolExecutor(1) as threads:
        result = threads.submit(second, b"1")
        while not (connections := listener.accept()):
            select.select([listener], [], [], LIMIT_SECONDS)
        connections[0].sendall(
            encode("gathered", all=["", ""]) + encode("failed", error="UnavailableError", text="no disk")
        )
        assert result.result() == [b"", b""]
    with pytest.raises(UnavailableError, match="no disk"):
        second(b"1")
    connections[0].close()
    listener.close()


@pytest.mark.parametrize("lost", [0, 1])
def test_a_rank_that_ends_is_named(rank: Rank, lost: int) -> None:
    def run(number: int) -> list[bytes]:
        rendezvous = rank(number, 3)
        rendezvous(b"")
        if number == lost:
            rendezvous.close()
            return []
        return rendezvous(b"")

    with ThreadPoolExecutor(3) as threads:
        futures = [threads.submit(run, number) for number in range(3)]
        for number in {0, 1, 2} - {lost}:
            with pytest.raises(PeerLostError, match=f"rank {lost} at 127.0.0.1 has ended"):
                futures[number].result()


def test_a_port_of_another_program_is_passed_over(place: Place, begin: Begin) -> None:
    with socket.create_server(("127.0.0.1", place.ports[0])):
        assert [future.result() for future in [begin(0, 2), begin(1, 2)]] == [[b"\0", b"\1"]] * 2


def test_strangers_do_not_disturb(place: Place, rank: Rank, begin: Begin) -> None:
    first = rank(0, 2)
    with ThreadPoolExecutor(1) as threads:
        result = threads.submit(first, b"\0")
        for sent in (b"", b"GET / HTTP/1.0\r\n\r\n" * 20):
            with socket.create_connection(("127.0.0.1", place.ports[0])) as stranger:
                stranger.sendall(sent)
        with socket.create_connection(("127.0.0.1", place.ports[0])):  # it stays
            assert begin(1, 2).result() == result.result() == [b"\0", b"\1"]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", place.ports[0]))


def connect(place: Place) -> socket.socket:
    """Returns a connection that knows the secret of the job."""
    connection = socket.create_connection(("127.0.0.1", place.ports[0]), LIMIT_SECONDS)
    authenticate(connection, f" {place.job}", LIMIT_SECONDS)
    return connection


def test_a_rank_that_reads_no_answer_does_not_delay_the_others(place: Place, rank: Rank) -> None:
    large = b"x" * (1 << 22)  # more than the buffers of a connection take
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(rank(0, 3), large)
        with connect(place) as silent:
            silent.sendall(encode("gather", rank=1, size=3, bytes=""))
            assert threads.submit(rank(2, 3), b"2").result() == [large, b"", b"2"]
        with pytest.raises(PeerLostError, match=r"rank 1 at 127\.0\.0\.1 did not take rank 0's answer"):
            first.result()


@pytest.mark.parametrize("content", [{"kind": "hello"}, {"kind": "gather"}, {"kind": "gather", "bytes": 7}])
def test_only_a_piece_counts_as_one(content: dict[str, Any], place: Place, rank: Rank) -> None:
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(rank(0, 2), b"0")
        with connect(place) as other:
            other.sendall(encode(rank=1, size=2, **content))
            with pytest.raises(PeerLostError, match=r"rank 1 at 127\.0\.0\.1 has ended while the job started"):
                first.result()


@pytest.mark.parametrize(
    "sent", [b"[]\n", b'{"kind": "gather"}\n', b'{"kind": "gather", "rank": [], "size": 2}\n', b"x"]
)
def test_a_connection_without_a_rank_does_not_disturb(sent: bytes, place: Place, rank: Rank, begin: Begin) -> None:
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(rank(0, 2), b"\0")
        with connect(place) as other:
            other.sendall(sent)
            assert begin(1, 2).result() == first.result() == [b"\0", b"\1"]


@pytest.mark.parametrize("number", [0, 1])
def test_an_unknown_name_is_an_error_at_once(number: int) -> None:
    place = Place("x" * 70, 29500, "a job", "SLURM_STEP_NODELIST")  # no resolver takes such a name
    with pytest.raises(UnavailableError, match=r"SLURM_STEP_NODELIST .*set MASTER_ADDR"):
        TcpRendezvous(number, 2, place, LIMIT_SECONDS)(b"")


def test_in_kubernetes_a_name_may_come_later(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [socket.gaierror(socket.EAI_NONAME, "Name or service not known")] * 3
    known = socket.getaddrinfo

    def resolve(*arguments: Any, **options: Any) -> Any:
        if answers:
            raise answers.pop()
        return known(*arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    early = replace(place, may_be_early=True)
    assert early.addresses(time.monotonic() + LIMIT_SECONDS) == [(socket.AF_INET, "127.0.0.1")]
    assert not answers


def test_with_a_secret_rank_0_listens_at_all_addresses(rank: Rank, place: Place, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of this job\n")
    rank(0, 2, secret_file=str(tmp_path / "secret"))
    for host in ("127.0.0.2", *(["::1"] if socket.has_dualstack_ipv6() else [])):
        socket.create_connection((host, place.ports[0]), LIMIT_SECONDS).close()


def test_an_address_of_another_host_is_an_error() -> None:
    with pytest.raises(UnavailableError, match="set MASTER_ADDR to an address of rank 0's host"):
        TcpRendezvous(0, 2, Place("192.0.2.1", 29500, "a job"), LIMIT_SECONDS)
