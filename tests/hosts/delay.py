"""Delays every packet that a host receives, for kernels without sch_netem: `python -IS delay.py SECONDS`.

The program reads packet numbers from NFQUEUE 0 of its network namespace, and accepts each packet after the delay. The
data of packets stays in the kernel, which does not split large packets, so a packet costs a few microseconds. The
program ends when its standard input ends.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import os
import select
import socket
import struct
import sys
import time

# These constants are from linux/netfilter/nfnetlink.h and nfnetlink_queue.h.
_NETLINK_NETFILTER, _QUEUE = 12, 3
_PACKET, _CONFIG, _VERDICT_BATCH = 0, 2, 3
_CONFIG_COMMAND, _CONFIG_PARAMETERS, _CONFIG_LENGTH, _CONFIG_MASK, _CONFIG_FLAGS = 1, 2, 3, 4, 5
_REQUEST, _ACKNOWLEDGE, _ERROR = 1, 4, 2
_ACCEPT = 1
_FAIL_OPEN, _WHOLE_PACKETS = 1, 4
_RECEIVE_BUFFER_FORCE = 33
_TIMER_SLACK = 29


def _attribute(kind: int, payload: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(payload), kind) + payload + b"\0" * (-len(payload) % 4)


def _message(kind: int, attributes: bytes, flags: int = _REQUEST) -> bytes:
    body = struct.pack("=BB", socket.AF_UNSPEC, 0) + struct.pack(">H", 0) + attributes
    return struct.pack("=IHHII", 16 + len(body), _QUEUE << 8 | kind, flags, 0, 0) + body


def _configure(queue: socket.socket, attributes: bytes) -> None:
    queue.send(_message(_CONFIG, attributes, _REQUEST | _ACKNOWLEDGE))
    reply = queue.recv(1 << 16)
    error = struct.unpack_from("=i", reply, 16)[0] if struct.unpack_from("=H", reply, 4)[0] == _ERROR else 0
    if error:
        raise OSError(-error, f"NFQUEUE: {os.strerror(-error)}")


def _open() -> socket.socket:
    queue = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
    queue.bind((0, 0))
    _configure(queue, _attribute(_CONFIG_COMMAND, struct.pack(">BBH", 1, 0, socket.AF_INET)))
    _configure(queue, _attribute(_CONFIG_PARAMETERS, struct.pack(">IB", 0, 1)))
    _configure(queue, _attribute(_CONFIG_LENGTH, struct.pack(">I", 1 << 16)))
    flags = struct.pack(">I", _FAIL_OPEN | _WHOLE_PACKETS)
    _configure(queue, _attribute(_CONFIG_FLAGS, flags) + _attribute(_CONFIG_MASK, flags))
    with contextlib.suppress(OSError):
        queue.setsockopt(socket.SOL_SOCKET, _RECEIVE_BUFFER_FORCE, 8 << 20)
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))  # a higher priority than that of spinning ranks
    ctypes.CDLL(None).prctl(_TIMER_SLACK, 1, 0, 0, 0)
    queue.setblocking(False)
    return queue


def _numbers(data: bytes) -> list[int]:
    """Returns the numbers of the packets that one read from the queue has returned."""
    found, at = [], 0
    while at + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, at)
        if kind == _QUEUE << 8 | _PACKET:
            # The number follows the headers of netlink (16 bytes), of netfilter (4) and of the attribute (4).
            found.append(struct.unpack_from(">I", data, at + 24)[0])
        at += length + (-length % 4)
    return found


def main(delay: float) -> None:
    """Delays packets until the standard input ends."""
    queue = _open()
    print("ready", flush=True)
    held: collections.deque[tuple[float, int]] = collections.deque()  # time of release and number, both ascending
    while True:
        wait = held[0][0] - time.monotonic() if held else None
        ready = [queue] if wait is not None and wait <= 0 else select.select([queue, sys.stdin], [], [], wait)[0]
        if sys.stdin in ready:
            return
        # If numbers are lost (ENOBUFS), the next verdict releases their packets, because it is for all up to a number.
        with contextlib.suppress(OSError):
            while ready:
                due = time.monotonic() + delay
                held.extend((due, number) for number in _numbers(queue.recv(1 << 16)))
                if held and held[0][0] <= due - delay:
                    break
        now, last = time.monotonic(), None
        while held and held[0][0] <= now:
            last = held.popleft()[1]
        if last is not None:
            queue.send(_message(_VERDICT_BATCH, _attribute(2, struct.pack(">II", _ACCEPT, last))))


if __name__ == "__main__":
    main(float(sys.argv[1]))
