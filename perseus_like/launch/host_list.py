"""The hosts of a job and the number of ranks on each: host lists, host files, and the assignment of ranks."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .start_errors import LaunchError


@dataclass(frozen=True)
class Host:
    """A host's name as the user wrote it, and its slots (the number of ranks that it may run)."""

    name: str
    slots: int

    def __str__(self) -> str:
        return f"{self.name}:{self.slots}"


# Host names have ASCII letters only (others are written in punycode). An IPv6 address is in brackets.
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+\]"
_HOST = re.compile(rf"(?P<name>{_NAME})(?::(?P<slots>[0-9]+))?")
_KEY_VALUE = re.compile(r"(?P<key>[A-Za-z_-]+)=(?P<value>\S+)")
_SLOT_KEYS = {"slots", "count", "cpu"}
_IGNORED_KEYS = {"max_slots", "max-slots", "binding", "ifname"}
_USER_REMEDY = "give the remote user's name in ~/.ssh/config (Host ..., User ...)"


def parse_hosts(text: str) -> list[Host]:
    """Parses `a:4,b:4`; a host without a number has one slot. A host named twice has the sum of its slots.

    The list may end with a comma.
    """
    parts = text.strip().removesuffix(",").split(",")
    return merge(_parse_host(part.strip(), f"host list {text!r}") for part in parts)


def parse_hostfile(path: str) -> list[Host]:
    """Reads a host file in Open MPI's (`a slots=4`) or MPICH's and Intel MPI's (`a:4`) dialect."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"cannot read the host file {path!r}: {error}") from error
    hosts = parse_hostfile_text(text, path)
    if not hosts:
        raise LaunchError(f"the host file {path!r} names no host; write lines such as 'a slots=4' or 'a:4'")
    return hosts


def parse_hostfile_text(text: str, path: str = "hostfile") -> list[Host]:
    """Parses a host file's text. Returns its hosts in order. A line without a number stands for one slot."""
    return merge(parse_lines(text, path))


def parse_lines(text: str, path: str) -> list[Host]:
    """Returns the host of each line of a host file's text."""
    lines = ((number, line.split("#", 1)[0].strip()) for number, line in enumerate(text.splitlines(), 1))
    return [_parse_line(line, f"{path}, line {number}") for number, line in lines if line]


def _parse_line(line: str, where: str) -> Host:
    name, *options = re.sub(r"\s*=\s*", "=", line).split()
    if name[0] in "+^":
        raise LaunchError(f"{where}: {name!r}: relative and excluded hosts are not supported; list the hosts to use")
    host = _parse_host(name, where)
    for option in options:
        match = _KEY_VALUE.fullmatch(option)
        key, value = (match["key"].lower(), match["value"]) if match else (option, "")
        if key in {"user", "username", "user_name"}:
            raise LaunchError(f"{where}: {option!r} is not supported; {_USER_REMEDY}")
        if key in _SLOT_KEYS:
            host = Host(host.name, _parse_slots(value, where))
        elif key not in _IGNORED_KEYS:
            raise LaunchError(f"{where}: cannot read {option!r}; write 'host slots=4' or 'host:4'")
    return host


def _parse_host(text: str, where: str) -> Host:
    if "@" in text:
        raise LaunchError(f"{where}: {text!r}: {_USER_REMEDY}")
    match = _HOST.fullmatch(text)
    if not match:
        raise LaunchError(f"{where}: cannot read {text!r}; write host or host:slots")
    return Host(match["name"], _parse_slots(match["slots"] or "1", where))


def _parse_slots(text: str, where: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text) or int(text) < 1:
        raise LaunchError(f"{where}: {text!r} is not a number of slots; it must be at least 1")
    return int(text)


def merge(hosts: Iterable[Host]) -> list[Host]:
    """Merges entries of the same name and adds their slots. The order is that of the first entries."""
    slots: dict[str, int] = {}
    for host in hosts:
        slots[host.name] = slots.get(host.name, 0) + host.slots
    return [Host(name, count) for name, count in slots.items()]


def assign_ranks(
    hosts: list[Host], num_proc: int, remedy: str = "write host:slots, or give a smaller -np"
) -> list[Host]:
    """Assigns `num_proc` ranks to the hosts in order. A host that gets no rank is not in the result.

    `remedy` is the end of the error text if there are too few slots.
    """
    total = sum(host.slots for host in hosts)
    if num_proc > total:
        listed = ",".join(map(str, hosts))
        raise LaunchError(f"-np {num_proc}, but the hosts ({listed}) have {total} slots; {remedy}")
    placed = []
    for host in hosts:
        ranks = min(host.slots, num_proc)
        if ranks:
            placed.append(Host(host.name, ranks))
        num_proc -= ranks
    return placed


def is_this_machine(name: str) -> bool:
    """Returns True if `name` is one of this machine's names, or a name of one of its addresses."""
    name = name.strip("[]")
    if name in {"localhost", "localhost.localdomain", "ip6-localhost", "::1", socket.gethostname()}:
        return True
    try:
        addresses = {(family, address[0]) for family, _, _, _, address in socket.getaddrinfo(name, None)}
    except OSError:
        return False
    return any(_is_own_address(family, str(address)) for family, address in addresses)


def _is_own_address(family: socket.AddressFamily, address: str) -> bool:
    # Only an address of one of this machine's interfaces can be bound.
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
            return True
    except OSError:
        return False
