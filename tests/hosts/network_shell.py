"""A remote shell over the test bed's network.

A cut link interrupts this shell, as it interrupts ssh. It does not interrupt the test bed's own remote shell.

python -IS network_shell.py serve ADDRESS        # runs on every host and executes commands until it is killed
python -IS network_shell.py call [OPTIONS] HOST COMMAND…
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

PORT = 2222
_STDOUT, _STDERR, _CODE = 1, 2, 0
_HEADER = struct.Struct("!BI")


def serve(address: str) -> None:
    """Accepts connections, and executes the command of each one on its own thread."""
    with socket.create_server((address, PORT)) as server:
        print("ready", flush=True)
        while True:
            connection, _ = server.accept()
            threading.Thread(target=_execute, args=(connection,), daemon=True).start()


def _execute(connection: socket.socket) -> None:
    requests = connection.makefile("rb")
    call = json.loads(requests.readline())
    pipe = subprocess.PIPE
    command = ["/bin/sh", "-c", call["command"]]
    process = subprocess.Popen(
        command, cwd=call["folder"], env=call["environment"], stdin=pipe, stdout=pipe, stderr=pipe
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    threading.Thread(target=_feed, args=(requests, process), daemon=True).start()
    kinds = {process.stdout.fileno(): _STDOUT, process.stderr.fileno(): _STDERR}
    with contextlib.suppress(OSError):
        while kinds:
            for descriptor in select.select(list(kinds), [], [])[0]:
                data = os.read(descriptor, 1 << 16)
                if data:
                    connection.sendall(_HEADER.pack(kinds[descriptor], len(data)) + data)
                else:
                    del kinds[descriptor]
        connection.sendall(_HEADER.pack(_CODE, process.wait() & 0xFF))
    connection.close()


def _feed(requests: object, process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError), process.stdin:
        while data := requests.read1(1 << 16):  # type: ignore[attr-defined]
            process.stdin.write(data)
            process.stdin.flush()


def call(words: list[str]) -> int:
    """Runs a command on another host and returns its exit code, or 255 as ssh does if there is no connection."""
    while words[0].startswith("-"):
        del words[: 2 if words[0][1:] in set("bcDEeFIiJLlmOopQRSWw") else 1]
    host, command = words[0].rpartition("@")[2], " ".join(words[1:])
    try:
        connection = socket.create_connection((host, PORT), timeout=10)
    except OSError as error:
        print(f"ssh: connect to host {host}: {error}", file=sys.stderr)
        return 255
    connection.settimeout(None)
    request = {"command": command, "folder": str(Path.cwd()), "environment": dict(os.environ)}
    connection.sendall(json.dumps(request).encode() + b"\n")
    threading.Thread(target=_send_input, args=(connection,), daemon=True).start()
    answers = connection.makefile("rb")
    while header := answers.read(_HEADER.size):
        kind, number = _HEADER.unpack(header)
        if kind == _CODE:
            return int(number)
        data = memoryview(answers.read(number))
        while data:
            data = data[os.write(kind, data) :]
    return 255


def _send_input(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := os.read(0, 1 << 16):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    code = call(sys.argv[2:])
    sys.stdout.flush()
    os._exit(code)
