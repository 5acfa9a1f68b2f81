"""Python objects between ranks, as bytes. They are unpickled only from ranks of the same job, which must be trusted."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from .collectives import Collectives, root_within
from .process_sets import ProcessSet, global_process_set
from .session import session
from .tensor import ArrayTensors

_bytes: Collectives[np.ndarray[Any, Any]] = Collectives(ArrayTensors())


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Root's object on every rank; root itself gets its own back. `obj` is not looked at elsewhere."""
    root_within(root_rank, process_set)
    is_root = session.core.rank() == root_rank
    # An allgather to which only root contributes needs no message about the size.
    gathered = _gather(
        pickle.dumps(obj, pickle.HIGHEST_PROTOCOL) if is_root else b"", "broadcast_object", name, process_set
    )
    return obj if is_root else pickle.load(gathered)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Every rank's object, by rank."""
    gathered = _gather(pickle.dumps(obj, pickle.HIGHEST_PROTOCOL), "allgather_object", name, process_set)
    # A pickle says itself where it ends.
    return [pickle.load(gathered) for _ in range(process_set.size() or 1)]


def _gather(mine: bytes, what: str, name: str | None, process_set: ProcessSet) -> io.BytesIO:
    array = np.frombuffer(mine, np.uint8)
    return io.BytesIO(
        _bytes.allgather(array, what if name is None else f"{what}.{name}", process_set).result().tobytes()
    )
