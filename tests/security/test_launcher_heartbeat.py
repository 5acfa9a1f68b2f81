"""The port of perseusrun that ranks under an mpirun connect to, with strangers at it and impostors in its place."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from perseus_like.launch.mpi import rank_main

from .conftest import Strangers
from .listening import listening_addresses

SECONDS = 60.0
# The ranks end as soon as the file is there.
PROGRAM = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.05)\n"
# An mpirun that starts its ranks only when the file is there: until then the port stays open.
LATE_MPIRUN = '#!/bin/sh\n[ $1 = --version ] || until [ -e {late} ]; do sleep 0.05; done\nexec {mpirun} "$@"\n'
GARBAGE = [
    "ÄÖÜ 0 host\n".encode(),
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 4,
    b"\xff" * 100_000,
    b"",
]
Job = Callable[..., "Running"]


class Running:
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
        """Waits until it listens; returns where."""
        while not (found := listening_addresses(self.process.pid)) and self.process.poll() is None:
            time.sleep(0.05)
        return found

    def start_ranks(self) -> None:
        self._start.touch()

    def end(self) -> str:
        """Lets the ranks end; returns the job's output."""
        self.start_ranks()
        self._end.touch()
        output, _ = self.process.communicate(timeout=SECONDS)
        assert self.process.returncode == 0, output
        return output


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """Starts `Running`; skips without an mpirun."""
    if shutil.which("mpirun", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("no mpirun beside this Python")
    running: list[Running] = []

    def start(*options: str) -> Running:
        running.append(Running(tmp_path, *options))
        return running[-1]

    yield start
    for each in running:
        each.process.kill()
        each.process.wait()


def test_garbage_does_not_end_the_job(job: Job) -> None:
    running = job()
    for address in running.addresses():
        for garbage in GARBAGE:
            with socket.create_connection(address, SECONDS) as stranger:
                with suppress(OSError):  # it may be closed before all is sent
                    stranger.sendall(garbage)
                    stranger.shutdown(socket.SHUT_WR)
                _read_to_the_end(stranger)
    assert running.end() == ""


def test_it_listens_at_the_given_interfaces_only(job: Job) -> None:
    running = job("--network-interfaces", "lo")
    addresses = {address for address, _ in running.addresses()}
    assert "127.0.0.1" in addresses
    assert addresses <= {"127.0.0.1", "::1"}
    assert running.end() == ""


def test_it_stops_listening_once_all_ranks_are_connected(job: Job) -> None:
    running = job()
    running.addresses()
    running.start_ranks()
    deadline = time.monotonic() + SECONDS
    while listening_addresses(running.process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert listening_addresses(running.process.pid) == []
    assert running.end() == ""


def test_strangers_do_not_keep_the_ranks_out(job: Job, strangers: Strangers) -> None:
    running = job("--network-interfaces", "lo")
    for address in running.addresses():
        strangers(address, 1000)
    running.start_ranks()
    deadline = time.monotonic() + SECONDS
    while listening_addresses(running.process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert listening_addresses(running.process.pid) == [], "it still waits for ranks"
    assert running.end() == ""


def test_an_impostor_does_not_learn_the_secret() -> None:
    secret = "f17e" * 16
    heard = b""

    def pretend(listener: socket.socket) -> None:
        nonlocal heard
        listener.settimeout(SECONDS)
        connection, _ = listener.accept()
        connection.settimeout(SECONDS)
        connection.sendall(os.urandom(32))
        while len(heard) < 64:
            heard += connection.recv(4096)
        connection.sendall(heard[32:])
        heard += _read_to_the_end(connection)
        connection.close()
        listener.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        impostor = threading.Thread(target=pretend, args=(listener,))
        impostor.start()
        text = f"30 {secret} 127.0.0.1 {listener.getsockname()[1]}"
        line = [sys.executable, "-IS", rank_main.__file__, "tag", json.dumps(["sh", "-c", "read _; exit 5"])]
        environment = {**os.environ, rank_main.HEARTBEAT: text, "PMI_RANK": "0"}
        with subprocess.Popen(line, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            impostor.join(SECONDS)
            process.communicate(timeout=SECONDS)
    assert process.returncode == 5  # the rank ran on, without a heartbeat
    assert len(heard) == 64
    assert secret.encode() not in heard


def _read_to_the_end(connection: socket.socket) -> bytes:
    heard = b""
    connection.settimeout(SECONDS)
    with suppress(ConnectionError):
        while data := connection.recv(4096):
            heard += data
    return heard
