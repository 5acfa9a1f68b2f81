"""Fuzzes the messages that a state agent of an elastic job reads from workers, and that the launcher reads from agents.

The fuzzer acts as a worker of the same job that sends any bytes and descriptors of memory. The agent must close the
connection of a worker that sends an invalid message, and continue. `Reader` must raise no error but ValueError.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys

import atheris

with atheris.instrument_imports(include=["perseus_like.launch.elastic"]):
    from perseus_like.launch.elastic import agent as agents
    from perseus_like.protocol.messages import Reader

# The agent writes messages for its launcher to its standard output, which the fuzzer does not read.
agents.send = lambda kind, **content: None


def make_memory(sealed: bool) -> int:
    """Returns a descriptor of 8 bytes of anonymous memory."""
    memory = os.memfd_create("fuzz", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(memory, b"8 bytes.")
    if sealed:
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return memory


def value(provider: atheris.FuzzedDataProvider) -> object:
    """Returns a value that JSON can represent."""
    kind = provider.ConsumeIntInRange(0, 6)
    if kind == 0:
        return provider.ConsumeInt(8)
    if kind == 1:
        return provider.ConsumeFloat()
    if kind == 2:
        return provider.ConsumeUnicodeNoSurrogates(8)
    if kind == 3:
        return [provider.ConsumeIntInRange(-9, 9) for _ in range(provider.ConsumeIntInRange(0, 3))]
    return 8 if kind == 4 else provider.PickValueInList([None, True, {}, [[]], 1 << 80, float("inf"), float("nan")])


def piece(provider: atheris.FuzzedDataProvider) -> bytes:
    """Returns a message with any content, or any bytes."""
    form = provider.ConsumeIntInRange(0, 7)
    if form < 2:
        return bytes(provider.ConsumeBytes(provider.ConsumeIntInRange(1, 512))) or b"\n"
    if form == 2:
        return b"[" * int(provider.ConsumeIntInRange(1, 4000)) + b"\n"
    content: dict[str, object] = {"kind": provider.PickValueInList(["begun", "leaving", "store", "take", "hosts", ""])}
    for name in ("rank", "generation", "why", "version", "size"):
        if provider.ConsumeIntInRange(0, 3):
            content[name] = value(provider)
    return json.dumps(content).encode() + b"\n"


def serve(agent: agents.Agent, provider: atheris.FuzzedDataProvider) -> None:
    """Sends the rest of the data to the agent as a worker."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    worker = agents.Worker(theirs)
    agent._serve(worker)
    with ours:
        while provider.remaining_bytes() and theirs.fileno() != -1:
            memory = [make_memory(provider.ConsumeBool()) for _ in range(provider.ConsumeIntInRange(0, 2))]
            socket.send_fds(ours, [piece(provider)], memory)
            for descriptor in memory:
                os.close(descriptor)
            agent._read(worker)
        ours.shutdown(socket.SHUT_WR)
        while theirs.fileno() != -1:
            agent._read(worker)


def test_one_input(data: bytes) -> None:
    """Feeds the data to the launcher's reader, or to an agent, which serves the next worker afterwards."""
    provider = atheris.FuzzedDataProvider(data)
    if provider.ConsumeBool():
        reader = Reader()
        try:
            while provider.remaining_bytes():
                reader.take(piece(provider))
        except ValueError:
            pass
        return
    serve(AGENT, provider)


if __name__ == "__main__":
    os.dup2(os.pipe()[0], 0)  # the launcher's end of the agent's standard input stays open and silent
    AGENT = agents.Agent(3600.0)
    atheris.Setup(sys.argv, test_one_input)
    atheris.Fuzz()
