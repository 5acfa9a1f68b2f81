"""Tests of the test bed itself: hosts that find each other by name, shaped links, and links that are cut."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.job import LIMIT_SECONDS

from .conftest import TestBeds
from .links import Links
from .network_test_bed import NetworkTestBed

LISTEN = """
import socket, sys
with socket.create_server(("", 7000)) as server:
    print("listening", flush=True)
    connection, _ = server.accept()
    while connection.recv(1 << 20):
        pass
"""
REACH = "import socket, sys; socket.create_connection(('h2', 9), float(sys.argv[1]))"
SEND = """
import json, socket, sys, time
connection = socket.create_connection((sys.argv[1], 7000))
begin = time.monotonic()
connection.sendall(bytes(int(sys.argv[2])))
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
print(json.dumps(time.monotonic() - begin))
"""


def send(test_bed: NetworkTestBed, count: int) -> float:
    """Sends `count` bytes from h1 to h2 and returns the number of seconds."""
    listener = subprocess.Popen(
        test_bed.command("h2", [sys.executable, "-c", LISTEN]), stdout=subprocess.PIPE, text=True
    )
    assert listener.stdout is not None
    assert listener.stdout.readline() == "listening\n"
    sender = subprocess.run(
        test_bed.command("h1", [sys.executable, "-c", SEND, "h2", str(count)]),
        capture_output=True,
        text=True,
        check=True,
    )
    assert listener.wait(LIMIT_SECONDS) == 0
    listener.stdout.close()
    seconds: float = json.loads(sender.stdout)
    return seconds


def test_hosts_have_names_and_a_remote_shell(test_beds: TestBeds) -> None:
    test_bed = test_beds(3)
    for host in test_bed.hosts:
        done = subprocess.run(test_bed.command(host, ["hostname"]), capture_output=True, text=True, check=True)
        assert done.stdout == f"{host}\n"
    remote = [
        test_bed.remote_shell,
        "-x",
        "-o",
        "StrictHostKeyChecking no",
        "root@h2",
        'echo $0 "$(hostname)"; pwd; exit 3',
    ]
    done = subprocess.run(remote, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, f"/bin/sh h2\n{Path.cwd()}\n")
    unknown = subprocess.run([test_bed.remote_shell, "h9", "true"], capture_output=True, text=True, check=False)
    assert (unknown.returncode, "h9" in unknown.stderr) == (255, True)
    assert socket.gethostname() not in test_bed.hosts


def test_traffic_is_shaped_and_counted(test_beds: TestBeds) -> None:
    count = 4 << 20
    test_bed = test_beds(2, Links(rate="200mbit"))
    before = test_bed.sent_bytes("h1")
    # A rate sets the shortest time, so the test also passes on a busy machine.
    assert send(test_bed, count) > 0.8 * count * 8 / 200e6
    assert count < test_bed.sent_bytes("h1") - before < 1.1 * count
    test_bed.change_links(Links(rate="1gbit", flow_cap="100mbit"))
    assert send(test_bed, count) > 0.8 * count * 8 / 100e6


@pytest.mark.parametrize("fault", ["cut", "crash"])
def test_faults(test_beds: TestBeds, fault: str) -> None:
    test_bed = test_beds(2)
    sleeper = subprocess.Popen(test_bed.command("h2", ["sh", "-c", "echo up; exec sleep 1000"]), stdout=subprocess.PIPE)
    assert sleeper.stdout is not None
    assert sleeper.stdout.readline() == b"up\n"
    if fault == "crash":
        test_bed.crash("h2")
        assert sleeper.wait(LIMIT_SECONDS) == -9
        assert test_bed.processes("h2") == []
        return
    reach = test_bed.command("h1", [sys.executable, "-c", REACH, "0.3"])
    test_bed.cut("h2")
    assert "timed out" in subprocess.run(reach, capture_output=True, text=True, check=False).stderr
    test_bed.heal("h2")
    reach[-1] = str(LIMIT_SECONDS)
    # An ARP request that was lost during the cut may fail now.
    while "No route to host" in (error := subprocess.run(reach, capture_output=True, text=True, check=False).stderr):
        pass
    assert "refused" in error
    sleeper.kill()
    sleeper.wait()


def test_close_ends_processes_and_removes_files(test_beds: TestBeds) -> None:
    test_bed = test_beds(2, Links(delay="1ms"))
    sleeper = subprocess.Popen(test_bed.command("h1", ["sleep", "1000"]))
    shell = test_bed.remote_shell
    test_bed.close()
    assert sleeper.wait(LIMIT_SECONDS) in {-15, -9}
    assert not os.path.lexists(shell)
    assert test_bed.hosts == ["h1", "h2"]
