"""Runs a listener in a process without free descriptors: the listener waits, and continues when some are free again."""

import contextlib
import os
import resource
import select
import socket
import threading
import time

from perseus_like.protocol.authentication import AuthenticatedListener, authenticate

SECONDS = 1.0
MOST_TURNS = 50  # the listener pauses for 0.2 s; a busy loop would turn thousands of times

listening = socket.create_server(("127.0.0.1", 0))
listener = AuthenticatedListener([listening], "secret", expected=1)
connection = socket.socket()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
poll = select.poll()
poll.register(listener, select.POLLIN)
used = []
with contextlib.suppress(OSError):
    while True:
        used.append(os.dup(0))
connection.connect(listening.getsockname())
turns = 0
end = time.monotonic() + SECONDS
while (left := end - time.monotonic()) > 0:
    poll.poll(1000 * left)
    assert listener.accept() == []
    turns += 1
assert 1 < turns < MOST_TURNS, turns
for descriptor in used:
    os.close(descriptor)
thread = threading.Thread(target=authenticate, args=(connection, "secret", 30.0))
thread.start()
while not listener.accept():
    poll.poll()
thread.join()
print("accepted")
