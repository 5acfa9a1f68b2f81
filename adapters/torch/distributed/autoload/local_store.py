"""torch's store for `env://` under perseusrun on one host: a file in a folder that only the job's user may enter.

torch itself would make a TCPStore, which listens on all network interfaces. Every host that reaches its port can read
and change its contents.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlparse

_VARIABLE = "PERSEUS_TORCH_STORE"  # the port for which this store stands, and its folder


def is_wanted(url: str) -> bool:
    """Returns whether all ranks of the job take part, at the address that perseusrun has set."""
    port, _, folder = os.environ.get(_VARIABLE, "").partition(" ")
    given = (os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT"))
    return bool(folder) and given == ("127.0.0.1", port) and fact(url, "world_size") == os.environ.get("PERSEUS_SIZE")


def rendezvous(url: str, timeout: Any = None, **_: Any) -> Iterator[Any]:
    """Yields the store, the rank and the number of ranks, as torch's own rendezvous handlers do."""
    from torch.distributed import FileStore  # type: ignore[attr-defined]
    from torch.distributed.constants import default_pg_timeout

    folder = os.environ[_VARIABLE].partition(" ")[2]
    rank, size = int(fact(url, "rank")), int(fact(url, "world_size"))
    store = FileStore(f"{folder}/{_count(folder, rank)}", size)
    store.set_timeout(timeout or default_pg_timeout)
    yield store, rank, size
    raise RuntimeError("env:// cannot be used for another rendezvous")


def _count(folder: str, rank: int) -> int:
    """Returns how many rendezvous this rank had before, in this process or in an earlier program of the same rank.

    Every rendezvous needs a file of its own. All ranks take part in each, so the numbers are the same on all of them.
    """
    with open(f"{folder}/rendezvous-of-{rank}", "ab", buffering=0) as counted:  # noqa: PTH123
        counted.write(b".")
        return counted.tell() - 1


def fact(url: str, name: str) -> str:
    """Returns the rank or world_size of a URL or of the environment, or "" if neither has it."""
    query = dict(parse_qsl(urlparse(url).query))
    return query.get(name) or os.environ.get(name.upper(), "")
