"""Tests of the port to which ranks under an mpirun connect, with unauthenticated clients and listeners."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from perseus_like.launch.mpi import rank_main
from tests.job import LIMIT_SECONDS, wait_until

from .conftest import SilentConnections
from .listening import listening_addresses

# The ranks end as soon as the file exists.
PROGRAM = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.05)\n"
# This mpirun starts its ranks only when the file exists. Until then the port stays open.
LATE_MPIRUN = '#!/bin/sh\n[ $1 = --version ] || until [ -e {late} ]; do sleep 0.05; done\nexec {mpirun} "$@"\n'
GARBAGE = [
    "ÄÖÜ 0 host\n".encode(),
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 4,
    b"\xff" * 100_000,
    b"",
]
Job = Callable[..., "RunningJob"]


class RunningJob:
    """A job of two ranks through mpirun."""

    def __init__(self, folder: Path, *options: str) -> None:
        mpirun = Path(sys.executable).with_name("mpirun")
        self._start, self._end = folder / "start", folder / "end"
        late = folder / "mpirun"
        late.write_text(LATE_MPIRUN.format(late=self._start, mpirun=mpirun))
        late.chmod(0o755)
        line = [sys.executable, "-m", "perseus_like.launch", "--mpi", "--mpirun", str(late), "-np", "2", *options]
        self.process = subprocess.Popen(
            [*line, sys.executable, "-c", PROGRAM, str(self._end)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def addresses(self) -> list[tuple[str, int]]:
        """Waits until the launcher listens, and returns its addresses."""
        return wait_until(lambda: listening_addresses(self.process.pid), "the launcher does not listen")

    def start_ranks(self) -> None:
        self._start.touch()

    def end(self) -> str:
        """Lets the ranks end, and returns the job's output."""
        self.start_ranks()
        self._end.touch()
        output, _ = self.process.communicate(timeout=LIMIT_SECONDS)
        assert self.process.returncode == 0, output
        return output


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """Returns a function that starts a `RunningJob` job. Skips the test if there is no mpirun."""
    if shutil.which("mpirun", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("no mpirun beside this Python")
    running: list[RunningJob] = []

    def start(*options: str) -> RunningJob:
        running.append(RunningJob(tmp_path, *options))
        return running[-1]

    yield start
    for each in running:
        each.process.kill()
        each.process.wait()


def test_garbage_does_not_end_the_job(job: Job) -> None:
    running = job()
    for address in running.addresses():
        for garbage in GARBAGE:
            with socket.create_connection(address, LIMIT_SECONDS) as client:
                with suppress(OSError):  # the launcher may close the connection before all is sent
                    client.sendall(garbage)
                    client.shutdown(socket.SHUT_WR)
                _read_to_the_end(client)
    assert running.end() == ""


def test_the_launcher_listens_at_the_given_interfaces_only(job: Job) -> None:
    running = job("--network-interfaces", "lo")
    addresses = {address for address, _ in running.addresses()}
    assert "127.0.0.1" in addresses
    assert addresses <= {"127.0.0.1", "::1"}
    assert running.end() == ""


def test_the_launcher_stops_listening_when_all_ranks_are_connected(job: Job) -> None:
    running = job()
    running.addresses()
    running.start_ranks()
    wait_until(lambda: not listening_addresses(running.process.pid), "the launcher still listens")
    assert running.end() == ""


def test_silent_connections_do_not_block_the_ranks(job: Job, silent_connections: SilentConnections) -> None:
    running = job("--network-interfaces", "lo")
    for address in running.addresses():
        silent_connections(address, 1000)
    running.start_ranks()
    wait_until(lambda: not listening_addresses(running.process.pid), "the launcher still waits for ranks")
    assert running.end() == ""


def test_a_listener_without_the_secret_does_not_learn_it() -> None:
    secret = "f17e" * 16
    received = b""

    def answer_as_impostor(listener: socket.socket) -> None:
        nonlocal received
        listener.settimeout(LIMIT_SECONDS)
        connection, _ = listener.accept()
        connection.settimeout(LIMIT_SECONDS)
        connection.sendall(os.urandom(32))
        while len(received) < 64:
            received += connection.recv(4096)
        connection.sendall(received[32:])
        received += _read_to_the_end(connection)
        connection.close()
        listener.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        impostor = threading.Thread(target=answer_as_impostor, args=(listener,))
        impostor.start()
        text = f"30 {secret} 127.0.0.1 {listener.getsockname()[1]}"
        line = [sys.executable, "-IS", rank_main.__file__, "tag", json.dumps(["sh", "-c", "read _; exit 5"])]
        environment = {**os.environ, rank_main.HEARTBEAT: text, "PMI_RANK": "0"}
        with subprocess.Popen(line, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            impostor.join(LIMIT_SECONDS)
            process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 5  # the rank continued without a heartbeat
    assert len(received) == 64
    assert secret.encode() not in received


def _read_to_the_end(connection: socket.socket) -> bytes:
    received = b""
    connection.settimeout(LIMIT_SECONDS)
    with suppress(ConnectionError):
        while data := connection.recv(4096):
            received += data
    return received
