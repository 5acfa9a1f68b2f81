"""Finds the addresses at which a process listens. Programs of the tests import this file, too."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from pathlib import Path

Address = tuple[str, int]
_LISTENING = "0A"  # the state LISTEN in /proc/net/tcp


def listening_addresses(process: int) -> list[Address]:
    """Returns the TCP addresses at which a process listens."""
    sockets = set()
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with suppress(OSError):
            sockets.add(str(descriptor.readlink()))
    found = []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING and f"socket:[{fields[9]}]" in sockets:
                digits, port = fields[1].split(":")
                words = struct.unpack(f">{len(digits) // 8}I", bytes.fromhex(digits))
                found.append((socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words)), int(port, 16)))
    return found
