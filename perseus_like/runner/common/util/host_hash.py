"""horovod.runner.common.util.host_hash: a text that is equal for processes that can share memory."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path

NAMESPACE_PATH = "/proc/self/ns"


def host_hash(salt: str | None = None) -> str:
    """Returns the host's short name and a hash of its full name, of this process's namespaces and of `salt`."""
    name = socket.gethostname()
    namespaces = sorted(str(entry.readlink()) for entry in Path(NAMESPACE_PATH).iterdir())
    parts = [name, *namespaces, *([str(salt)] if salt else [])]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
    return f"{name.partition('.')[0]}-{digest}"


__all__ = ["NAMESPACE_PATH", "host_hash"]
