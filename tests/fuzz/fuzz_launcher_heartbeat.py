"""Fuzzes what the launcher reads from its heartbeat port: the handshake, and the messages of ranks after it."""

from __future__ import annotations

import socket
import sys

import atheris

with atheris.instrument_imports(include=["perseus_like.launch"]):
    from perseus_like.launch.mpi.heartbeat import _RankConnection
    from perseus_like.protocol.authentication import AuthenticationError, Handshake

CONNECTION = socket.socket()


def test_one_input(data: bytes) -> None:
    """Feeds the data in pieces to a handshake, or to a connection whose handshake is complete."""
    provider = atheris.FuzzedDataProvider(data)
    if provider.ConsumeBool():
        handshake = Handshake("secret", is_listener=provider.ConsumeBool())
        try:
            while handshake.missing:
                handshake.take(provider.ConsumeBytes(min(handshake.missing, provider.ConsumeIntInRange(0, 64))))
        except AuthenticationError:
            return
        raise AssertionError("the fuzzer proved that it knows the secret")
    rank = _RankConnection(CONNECTION)
    while provider.remaining_bytes() and rank.take(provider.ConsumeBytes(provider.ConsumeIntInRange(1, 1024))):
        pass


if __name__ == "__main__":
    atheris.Setup(sys.argv, test_one_input)
    atheris.Fuzz()
