"""Tests the launcher's event loop."""

from __future__ import annotations

import functools
import socket

from perseus_like.launch.processes.event_loop import EventLoop


def test_a_source_that_is_forgotten_is_not_served() -> None:
    """Two sources are ready at the same time, and the function of the first one ends the watch of the other."""
    loop = EventLoop()
    pairs = [socket.socketpair() for _ in range(2)]
    served: list[int] = []

    def serve(number: int) -> None:
        served.append(number)
        other = pairs[1 - number][0]
        loop.forget(other)
        other.close()

    for number, (source, end) in enumerate(pairs):
        end.send(b".")
        loop.watch(source, functools.partial(serve, number))
    loop.wait(1.0)
    assert len(served) == 1
    loop.close()
    for pair in pairs:
        for each in pair:
            each.close()
