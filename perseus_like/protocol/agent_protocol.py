"""Facts that the state agents, their clients and the launcher share. Needs the standard library only."""

from __future__ import annotations

import fcntl
import hmac
import os

# Begins each line of an agent to the launcher. A remote shell may print other lines, such as those of a .bashrc.
MARK = b"perseus-agent "

_NAMES = 16
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def socket_names(secret: str) -> list[str]:
    """Returns the abstract socket names of an agent, in the order in which both ends try them.

    No process can compute them without the secret. If another user's process binds a name that an earlier agent has
    used, the agent takes the next one.
    """
    digests = (hmac.digest(secret.encode(), f"state agent {number}".encode(), "sha256") for number in range(_NAMES))
    return [f"\0perseus-agent-{digest.hex()[:32]}" for digest in digests]


def seal(memory: int) -> None:
    """Makes the content and the size of anonymous memory final. It must allow sealing."""
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)


def check_memory(descriptor: int, size: object) -> None:
    """Raises ValueError unless `descriptor` is sealed memory of `size` bytes."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0
    if seals & _SEALS != _SEALS or os.fstat(descriptor).st_size != size:
        raise ValueError(f"the descriptor is no sealed memory of {size} bytes")
