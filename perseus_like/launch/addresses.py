"""The addresses at which this machine can be reached, and sockets that listen there."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

_SIOCGIFADDR = 0x8915


def own_addresses(interfaces: str | None) -> list[str]:
    """Returns the IPv4 and global IPv6 addresses, only those of `interfaces` ("eth0,ib0") if given.

    Loopback addresses are returned only if there are no others.
    """
    wanted = set(interfaces.split(",")) if interfaces else None
    found = [address for name, address in [*_ipv4(), *_ipv6()] if wanted is None or name in wanted]
    outside = [address for address in found if not ipaddress.ip_address(address).is_loopback]
    return outside or found


def listen_at(addresses: list[str]) -> list[socket.socket]:
    """Returns a TCP socket for each address, listening at a port of the system's choice.

    An address that cannot be bound, such as an IPv6 address that is still checked for duplicates, is left out.
    """
    listeners = []
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with contextlib.suppress(OSError):
            listeners.append(socket.create_server((address, 0), family=family, backlog=socket.SOMAXCONN))
    return listeners


def _ipv4() -> list[tuple[str, str]]:
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            try:
                answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, request)
            except OSError:  # the interface has no IPv4 address
                continue
            found.append((name, socket.inet_ntoa(answer[20:24])))
    return found


def _ipv6() -> list[tuple[str, str]]:
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        digits, _, _, scope, _, name = line.split()
        if scope in {"00", "10"}:  # global, host
            found.append((name, str(ipaddress.IPv6Address(int(digits, 16)))))
    return found
