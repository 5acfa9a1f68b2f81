"""torch's store for `env://` without MASTER_ADDR, and the variables of torchrun for programs of other launchers."""

from __future__ import annotations

import atexit
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlparse

import torch
from torch.distributed import FileStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.constants import default_pg_timeout
from torch.distributed.distributed_c10d import Store

from perseus_like import launchers
from perseus_like.host_facts import temporary_folder
from perseus_like.session import session
from perseus_like.start import start

from ..old_arguments import pinning_notes

Handler = Callable[..., Iterator[tuple[Store, int, int]]]


def rendezvous(
    original: Handler, url: str, timeout: timedelta = default_pg_timeout, **options: Any
) -> Iterator[tuple[Store, int, int]]:
    """Handles `env://` without MASTER_ADDR or the rank, which neither mpirun nor perseusrun on several hosts sets.

    Yields the store, the rank and the number of ranks. Ranks exchange the store's address through the core. Without a
    launcher, `original` (torch's handler) runs.
    """
    if launchers.is_launched():
        return _launched(url, timeout)
    return original(url, timeout=timeout, **options)


def export_world() -> None:
    """Sets the variables of torchrun and accelerate, for programs that do not ask torch.distributed. Collective."""
    from perseus_like.objects import allgather_object, broadcast_object

    core = session.core
    world = {
        "RANK": core.rank(),
        "WORLD_SIZE": core.size(),
        "LOCAL_RANK": core.local_rank(),
        "LOCAL_WORLD_SIZE": core.local_size(),
        "LOCAL_SIZE": core.local_size(),
    }
    os.environ.update({name: str(value) for name, value in world.items()})
    own_name = "127.0.0.1" if core.local_size() == core.size() else socket.gethostname()
    host, port = broadcast_object((own_name, _free_port()), 0, "torch.world")
    os.environ.setdefault("MASTER_ADDR", host)
    os.environ.setdefault("MASTER_PORT", str(port))
    launchers.mark_rank(core.rank(), core.size())  # a process of this rank inherits this store, which is not its own
    if not any(allgather_object(has_accelerator(), "torch.accelerators")):
        # Without this variable, accelerate looks for a GPU, finds none, and continues with one process. If one rank has
        # a GPU, all leave the choice to accelerate, so that ranks do not silently train on different kinds of devices.
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")


def notes_on_pinning() -> list[str]:
    """Returns a note for each variable for pinning that is set and has no effect in this process."""
    return pinning_notes(os.environ, Path("/proc/self/maps").read_text())


def has_accelerator() -> bool:
    """Returns whether torch finds a GPU or another accelerator (XPU, NPU, …) in this process."""
    accelerator = getattr(torch, "accelerator", None)  # since torch 2.6
    if accelerator is not None and accelerator.is_available():
        return True
    kinds = [getattr(torch, kind, None) for kind in ("cuda", "xpu", "npu", "mlu", "hpu", "musa")]
    return any(kind is not None and kind.is_available() for kind in kinds)


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("", 0))
        return int(listening.getsockname()[1])


def _launched(url: str, timeout: timedelta) -> Iterator[tuple[Store, int, int]]:
    start("torch.distributed")
    rank, size = int(session.core.rank()), int(session.core.size())
    query = dict(parse_qsl(urlparse(url).query))
    if int(query.get("rank", rank)) != rank or int(query.get("world_size", size)) != size:
        raise ValueError(
            f"init_process_group(rank={query.get('rank')}, world_size={query.get('world_size')}): the launcher started "
            f"this process as rank {rank} of {size}. Leave them out, or give a rendezvous (MASTER_ADDR and "
            "MASTER_PORT, or init_method=) that all ranks of yours share"
        )
    yield _store(rank, size, timeout), rank, size
    raise RuntimeError("env:// cannot be used for another rendezvous")


def _store(rank: int, size: int, timeout: timedelta) -> Store:
    """Returns a file that only this user may read, on one host; a TCPStore would listen on all network interfaces."""
    from perseus_like.objects import broadcast_object

    if session.core.local_size() == size:
        folder = temporary_folder("perseus-store-") if rank == 0 else None
        if folder:
            atexit.register(_remove, folder, os.getpid())
        store = FileStore(f"{broadcast_object(folder, 0, 'torch.store')}/store", size)
        store.set_timeout(timeout)
        return store
    if rank != 0:
        host, port = broadcast_object(None, 0, "torch.store")
        return TCPStore(host, port, size, False, timeout)
    host = socket.gethostname()
    listening = TCPStore(host, 0, size, True, timeout, wait_for_workers=False)
    broadcast_object((host, listening.port), 0, "torch.store")
    return listening


def _remove(folder: str, process: int) -> None:
    """Removes the folder at the end of the process that made it, not at the end of a forked child."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
