"""The lab itself: hosts that know each other by name, links as slow as asked for, cables that can be pulled."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Labs
from .lab import Lab
from .links import Links

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


def send(lab: Lab, count: int) -> float:
    """Seconds in which so many bytes go from h1 to h2."""
    listener = subprocess.Popen(lab.command("h2", [sys.executable, "-c", LISTEN]), stdout=subprocess.PIPE, text=True)
    assert listener.stdout is not None
    assert listener.stdout.readline() == "listening\n"
    sender = subprocess.run(
        lab.command("h1", [sys.executable, "-c", SEND, "h2", str(count)]), capture_output=True, text=True, check=True
    )
    assert listener.wait(10) == 0
    listener.stdout.close()
    seconds: float = json.loads(sender.stdout)
    return seconds


def test_hosts_are_hosts(labs: Labs) -> None:
    lab = labs(3)
    for host in lab.hosts:
        told = subprocess.run(lab.command(host, ["hostname"]), capture_output=True, text=True, check=True)
        assert told.stdout == f"{host}\n"
    remote = [lab.remote_shell, "-x", "-o", "StrictHostKeyChecking no", "root@h2", 'echo $0 "$(hostname)"; pwd; exit 3']
    told = subprocess.run(remote, capture_output=True, text=True, check=False)
    assert (told.returncode, told.stdout) == (3, f"/bin/sh h2\n{Path.cwd()}\n")
    unknown = subprocess.run([lab.remote_shell, "h9", "true"], capture_output=True, text=True, check=False)
    assert (unknown.returncode, "h9" in unknown.stderr) == (255, True)
    assert socket.gethostname() not in lab.hosts


def test_what_goes_over_the_wire_is_slow_and_counted(labs: Labs) -> None:
    count = 4 << 20
    lab = labs(2, Links(rate="200mbit"))
    before = lab.sent_bytes("h1")
    # A rate is a least time: no machine is too busy for that.
    assert send(lab, count) > 0.8 * count * 8 / 200e6
    assert count < lab.sent_bytes("h1") - before < 1.1 * count
    lab.change_links(Links(rate="1gbit", flow_cap="100mbit"))
    assert send(lab, count) > 0.8 * count * 8 / 100e6


@pytest.mark.parametrize("fault", ["cut", "crash"])
def test_faults(labs: Labs, fault: str) -> None:
    lab = labs(2)
    sleeper = subprocess.Popen(lab.command("h2", ["sh", "-c", "echo up; exec sleep 60"]), stdout=subprocess.PIPE)
    assert sleeper.stdout is not None
    assert sleeper.stdout.readline() == b"up\n"
    if fault == "crash":
        lab.crash("h2")
        assert sleeper.wait(10) == -9
        assert lab.processes("h2") == []
        return
    reach = lab.command("h1", [sys.executable, "-c", REACH, "0.3"])
    lab.cut("h2")
    assert "timed out" in subprocess.run(reach, capture_output=True, text=True, check=False).stderr
    lab.heal("h2")
    reach[-1] = "30"
    # A question for h2's address that was lost before may fail now.
    while "No route to host" in (said := subprocess.run(reach, capture_output=True, text=True, check=False).stderr):
        pass
    assert "refused" in said
    sleeper.kill()
    sleeper.wait()


def test_nothing_is_left(labs: Labs) -> None:
    lab = labs(2, Links(delay="1ms"))
    sleeper = subprocess.Popen(lab.command("h1", ["sleep", "60"]))
    shell = lab.remote_shell
    lab.close()
    assert sleeper.wait(10) in {-15, -9}
    assert not os.path.lexists(shell)
    assert lab.hosts == ["h1", "h2"]
