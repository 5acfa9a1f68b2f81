"""Tests of the rendezvous socket of the ranks of one host, with unauthenticated clients of this and of another user."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perseus_like.protocol.authentication import authenticate
from tests.job import LIMIT_SECONDS, wait_until

from .conftest import AsOtherUser

# Rank 1 calls init() when the file exists.
PROGRAM = """
import os, sys, time
if os.environ["PERSEUS_RANK"] == "0":
    print(os.environ["PERSEUS_RENDEZVOUS"], flush=True)
else:
    while not os.path.exists(sys.argv[1]): time.sleep(0.05)
import numpy as np
import perseus_like.numpy as hvd
try:
    hvd.init()
except Exception as error:
    print(error, flush=True)
    sys.exit(3)
print(hvd.allreduce(np.ones(1), op=hvd.Sum), flush=True)
"""


def socket_name(address: str) -> str:
    """Returns the name of the socket at which the ranks of a session with this address meet."""
    digest = hmac.new(address.encode(), b"name of the rendezvous", hashlib.sha256).hexdigest()
    return f"perseus-{digest[:32]}"


class WaitingJob:
    """A job of two ranks in which rank 1 has not yet called init()."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._file = folder / "call init"
        line = [sys.executable, "-m", "perseus_like.launch", "--no-prefix", "-np", "2", *options]
        self.process = subprocess.Popen(
            [*line, sys.executable, "-c", PROGRAM, str(self._file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        address = self.process.stdout.readline().strip()
        self.secret = f"0-{address}"
        self.name = socket_name(self.secret)
        self._wait_for_rank_0()

    def _wait_for_rank_0(self) -> None:
        """Waits for rank 0 to listen. Every user may read the list of sockets."""
        sockets = Path("/proc/net/unix")
        wait_until(lambda: f"@{self.name}\n" in sockets.read_text(), "rank 0 does not listen")

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(LIMIT_SECONDS)
        connection.connect("\0" + self.name)
        return connection

    def end(self) -> list[str]:
        """Lets rank 1 call init(), and returns the lines that the ranks print."""
        self._file.touch()
        output, _ = self.process.communicate(timeout=LIMIT_SECONDS)
        return output.splitlines()


@pytest.fixture
def waiting_jobs(tmp_path: Path) -> Iterator[Any]:
    """Returns a function that starts a `WaitingJob` with some options."""
    started: list[WaitingJob] = []

    def start(*options: str) -> WaitingJob:
        started.append(WaitingJob(tmp_path, *options))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()


def test_garbage_and_silence_of_the_same_user_do_not_disturb_the_job(waiting_jobs: Any) -> None:
    job = waiting_jobs()
    with contextlib.ExitStack() as stack:
        for garbage in (b"half a handshake", "ÄÖÜ".encode() * 100, b"\xff" * 100_000, *[b""] * 50):
            client = stack.enter_context(job.connect())
            with contextlib.suppress(OSError):  # rank 0 may close the connection before all is sent
                client.sendall(garbage)
        assert job.end() == ["[2.]", "[2.]"]


def test_names_of_sockets_contain_no_part_of_the_secret(waiting_jobs: Any) -> None:
    """Otherwise, another user could listen at the names of the job's next sessions before the job does."""
    job = waiting_jobs()
    secret = job.secret.removeprefix("0-perseus-")
    names = Path("/proc/net/unix").read_text()
    assert not [start for start in range(0, len(secret), 8) if secret[start : start + 8] in names]
    assert job.end() == ["[2.]", "[2.]"]


def test_the_core_and_the_launcher_use_one_protocol(waiting_jobs: Any) -> None:
    job = waiting_jobs()
    with job.connect() as connection:
        authenticate(connection, job.secret)
        connection.sendall(struct.pack("3i", 1, 2, os.getpid()))  # rank 1 of 2, and its pid
    job.process.kill()


def test_connections_of_another_user_do_not_disturb_the_job(waiting_jobs: Any, as_other_user: AsOtherUser) -> None:
    job = waiting_jobs()
    as_other_user(_connect_often, job.name, 5000)
    assert job.end() == ["[2.]", "[2.]"]


def _connect_often(name: str, count: int) -> None:
    for _ in range(count):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect("\0" + name)


def test_the_start_timeout_counts_while_another_user_connects(waiting_jobs: Any, as_other_user: AsOtherUser) -> None:
    job = waiting_jobs("--start-timeout", "2")
    as_other_user(_connect_until_it_is_closed, job.name)
    output = job.end()
    assert any("only 1 of 2 ranks of this host connected within 2 s; missing: rank 1" in line for line in output), (
        output
    )


def _connect_until_it_is_closed(name: str) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    with contextlib.suppress(ConnectionRefusedError):
        while time.monotonic() < deadline:
            _connect_often(name, 1)
    assert time.monotonic() < deadline, "rank 0 waits for its ranks without a limit"
