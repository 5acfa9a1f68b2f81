"""Runs a listener in a process without free descriptors: the listener waits, and continues when some are free again."""

import contextlib
import os
import resource
import select
import socket
import threading
import time

from perseus_like.protocol.authentication import AuthenticatedListener, authenticate

# The listener pauses for 0.2 s in every second turn, so these turns take 0.8 s. A busy loop takes milliseconds.
TURNS = 9
LEAST_SECONDS = 0.4

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
begin = time.monotonic()
for _ in range(TURNS):
    poll.poll()
    assert listener.accept() == []
assert time.monotonic() - begin > LEAST_SECONDS
for descriptor in used:
    os.close(descriptor)
thread = threading.Thread(target=authenticate, args=(connection, "secret", 600.0))
thread.start()
while not listener.accept():
    poll.poll()
thread.join()
print("accepted")
