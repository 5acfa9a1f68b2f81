"""Simulates several hosts on one machine, with shaped links, faults and a remote shell.

The hosts are network namespaces that a bridge joins. Each host (h1, h2, …) has its own network, host name, IPC, mounts,
/dev/shm, /sys and /etc/hosts, so every MPI takes them for different hosts. They share process ids and files with the
machine. The machine's own network does not change, and the hosts end with the process that made them.

The test bed needs root, iproute2 and util-linux. A delay also needs sch_netem, or iptables with NFQUEUE.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from .links import Links, shape

_SUBNET = "10.77.0"
_GRACE_SECONDS = 2.0
_END_SECONDS = 60.0  # the longest wait for processes that end at once

# A host exists as long as its first process, which ends when the process that made it closes its input or dies.
_SWITCH = "ip link set lo up; echo ready; exec cat"
_HOST = """
hostname "$0"
mount --make-rprivate /
mount -t sysfs sysfs /sys
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount --bind "$1" /etc/hosts
ip link set lo up
echo ready
exec cat
"""

# The script takes the arguments of ssh: options, a host and a command. Unlike ssh, it keeps the environment.
_REMOTE_SHELL = """#!/bin/sh
while :; do
  case $1 in
    -[bcDEeFIiJLlmOopQRSWw]) shift 2 ;;
    -*) shift ;;
    *) break ;;
  esac
done
host=${1#*@}; shift
read -r first 2>/dev/null <"FOLDER/$host" || { echo "ssh: could not resolve hostname $host" >&2; exit 255; }
exec nsenter -t "$first" -m -u -i -n -- /bin/sh -c 'cd "$1" 2>/dev/null; shift; exec "$@"' sh "$PWD" /bin/sh -c "$*"
"""


class NetworkTestBed:
    """Hosts h1, h2, … that exist during a `with` block."""

    def __init__(self, hosts: int, links: Links | None = None) -> None:
        """Prepares the hosts. `with` raises OSError if the machine allows none; call `why_unsupported` before."""
        self.hosts = [f"h{number + 1}" for number in range(hosts)]
        self._links = links or Links()
        self._folder = Path(tempfile.mkdtemp(prefix="perseus-test-bed-"))
        self._first: dict[str, subprocess.Popen[str]] = {}  # the first process of each host and of the switch
        self._delays: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> NetworkTestBed:
        try:
            self._build()
            self.change_links(self._links)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def remote_shell(self) -> str:
        """Returns the path of a program that takes the same arguments as ssh."""
        return str(self._folder / "remote-shell")

    def address(self, host: str) -> str:
        """Returns the IPv4 address of a host."""
        return f"{_SUBNET}.{self.hosts.index(host) + 1}"

    def command(self, host: str, arguments: Sequence[str], folder: Path | None = None) -> list[str]:
        """Returns the command line that runs `arguments` on a host, in `folder` or in this process's folder."""
        first = str(self._first[host].pid)
        shell = 'cd "$1"; shift; exec "$@"'
        return [
            "nsenter",
            "-t",
            first,
            "-m",
            "-u",
            "-i",
            "-n",
            "--",
            "sh",
            "-c",
            shell,
            "sh",
            str(folder or Path.cwd()),
            *arguments,
        ]

    def perseusrun(self, slots: dict[str, int], *options: str, folder: Path | None = None) -> list[str]:
        """Returns the command line of perseusrun on the first host. `slots` has the number of ranks of each host."""
        where = ",".join(f"{host}:{count}" for host, count in slots.items())
        line = [sys.executable, "-m", "perseus_like.launch", "-np", str(sum(slots.values())), "-H", where]
        line += ["--remote-shell", self.remote_shell, "--network-interfaces", "eth0", "--tcp", *options]
        return self.command(self.hosts[0], line, folder)

    def change_links(self, links: Links) -> None:
        """Sets other rates, delays and caps. Processes on the hosts continue."""
        self._links = links
        for number, host in enumerate(self.hosts):
            shape(links, self._in(host), "eth0", self._in("switch"), f"p{number + 1}")
            self._stop_delay(host)
            if links.delay and not links.delay_by_kernel():
                self._start_delay(host)

    def sent_bytes(self, host: str) -> int:
        """Returns the number of bytes that a host has sent since its start."""
        return int(_run([*self._in(host), "cat", "/sys/class/net/eth0/statistics/tx_bytes"]))

    def cut(self, host: str) -> None:
        """Cuts a host's link. Packets are lost, and connections stay open."""
        self._ip("switch", f"link set p{self.hosts.index(host) + 1} down")

    def heal(self, host: str) -> None:
        """Restores a host's link."""
        self._ip("switch", f"link set p{self.hosts.index(host) + 1} up")

    def cut_between(self, one: str, other: str) -> None:
        """Cuts the network between two hosts. Both still reach the others."""
        for here, there in ((one, other), (other, one)):
            # Packets go to a network card that nobody has.
            self._ip(here, f"neigh replace {self.address(there)} lladdr 02:00:00:00:00:01 nud permanent dev eth0")

    def crash(self, host: str) -> None:
        """Kills all processes of a host. A real crash also stops its network, so call `cut` before."""
        for process in self.processes(host):
            _signal(process, signal.SIGKILL)

    def processes(self, host: str) -> list[int]:
        """Returns the processes that run on a host, without those of the test bed."""
        own = {process.pid for started in (self._first, self._delays) for process in started.values()}
        here = _network_of(self._first[host].pid)
        return [process for process in _all_processes() if _network_of(process) == here and process not in own]

    def close(self) -> None:
        """Ends the processes on the hosts and removes the hosts."""
        alive = {host: first for host, first in self._first.items() if first.poll() is None}
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + _GRACE_SECONDS
            left = [process for host in alive for process in self.processes(host)]
            for process in left:
                _signal(process, number)
            while left and time.monotonic() < deadline:
                time.sleep(0.02)
                left = [process for process in left if Path(f"/proc/{process}").exists()]
        for host in list(self._delays):
            self._stop_delay(host)
        for first in self._first.values():
            assert first.stdin is not None
            first.stdin.close()
            first.wait(_END_SECONDS)
            if first.stdout is not None:
                first.stdout.close()
        self._first.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _build(self) -> None:
        names = self._folder / "hosts"
        lines = [f"{self.address(host)} {host}\n" for host in self.hosts]
        names.write_text("127.0.0.1 localhost\n" + "".join(lines))
        shell = Path(self.remote_shell)
        shell.write_text(_REMOTE_SHELL.replace("FOLDER", str(self._folder)))
        shell.chmod(0o755)
        self._start("switch", ["--net"], [_SWITCH])
        for host in self.hosts:
            self._start(host, ["--net", "--uts", "--ipc", "--mount"], [_HOST, host, str(names)])
        switch = self._first["switch"].pid
        self._ip("switch", "link add bridge type bridge forward_delay 0 mcast_snooping 0")
        self._ip("switch", "link set bridge up")
        for number, host in enumerate(self.hosts):
            port = f"p{number + 1}"
            # The device is created inside the host, so that it is never visible on the machine.
            self._ip(host, f"link add eth0 type veth peer name {port} netns {switch}")
            self._ip(host, f"addr add {self.address(host)}/24 dev eth0")
            self._ip(host, "link set eth0 up")
            self._ip("switch", f"link set {port} master bridge up")

    def _start(self, host: str, spaces: list[str], script: list[str]) -> None:
        first = subprocess.Popen(
            ["unshare", *spaces, "sh", "-ec", *script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._first[host] = first
        assert first.stdout is not None
        if first.stdout.readline() != "ready\n":
            raise OSError(f"host {host} of the test bed did not come up")
        (self._folder / host).write_text(f"{first.pid}\n")

    def _ip(self, host: str, words: str) -> None:
        _run([*self._in(host), "ip", *words.split()])

    def _in(self, host: str) -> list[str]:
        spaces = ["-n"] if host == "switch" else ["-n", "-m"]
        return ["nsenter", "-t", str(self._first[host].pid), *spaces, "--"]

    def _start_delay(self, host: str) -> None:
        program = Path(__file__).with_name("delay.py")
        delay = subprocess.Popen(
            [*self._in(host), sys.executable, "-IS", str(program), str(self._links.delay_seconds())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._delays[host] = delay
        assert delay.stdout is not None
        if delay.stdout.readline() != "ready\n":
            raise OSError(f"the delay of host {host} did not come up")
        _run([*self._in(host), *_queue_rule("-A")])

    def _stop_delay(self, host: str) -> None:
        delay = self._delays.pop(host, None)
        if delay is None:
            return
        with contextlib.suppress(subprocess.CalledProcessError):
            _run([*self._in(host), *_queue_rule("-D")])
        delay.kill()
        delay.communicate()


def _queue_rule(action: str) -> list[str]:
    rule = "INPUT -i eth0 -j NFQUEUE --queue-num 0 --queue-bypass"
    return ["iptables", "-w", action, *rule.split()]


def _run(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True).stdout


def _signal(process: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


def _all_processes() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _network_of(process: int) -> str | None:
    try:
        return str(Path(f"/proc/{process}/ns/net").readlink())
    except OSError:
        return None
