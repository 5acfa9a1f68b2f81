"""Ranks that share GPUs: NCCL refuses two of its ranks on one GPU, unless they seem to be on two hosts.

`PERSEUS_BENCHMARK_STAND_IN` names a file of Python that every program for a GPU executes first: a stand-in for CUDA.
"""

from __future__ import annotations

import json
import os
import runpy
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import torch

import perseus_like.torch as hvd

from .. import RESULT, SMALL, write_whole

if _stand_in := os.environ.get("PERSEUS_BENCHMARK_STAND_IN"):
    runpy.run_path(_stand_in)

Size = TypeVar("Size")


def sized(usual: Size, small: Size) -> Size:
    """Returns the size of the work. The small one is for seeing if a program runs."""
    return small if SMALL in os.environ else usual


def keep(numbers: Mapping[str, object]) -> None:
    """Writes what rank 0 has measured to the file of results, if there is to be one."""
    if hvd.rank() == 0 and RESULT in os.environ:
        write_whole(Path(os.environ[RESULT]), json.dumps(numbers))


def sharing(identities: Sequence[str]) -> list[list[int]]:
    """Returns the lists of ranks that have the same GPU; `identities` is by rank."""
    ranks: dict[str, list[int]] = {}
    for rank, identity in enumerate(identities):
        ranks.setdefault(identity, []).append(rank)
    return [listed for listed in ranks.values() if len(listed) > 1]


def identity_of(device: int) -> str:
    """Returns a text that no other GPU has: the UUID, or the host and the PCI address with an older torch."""
    properties = torch.cuda.get_device_properties(device)
    uuid = getattr(properties, "uuid", None)
    places = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    return str(uuid) if uuid is not None else f"{socket.gethostname()} {places if None not in places else device}"


def seem_apart(rank: int) -> None:
    """Makes NCCL take each rank for a host of its own, which it connects by sockets. Call it before NCCL starts."""
    os.environ["NCCL_HOSTID"] = f"rank {rank}"
    os.environ["NCCL_NET"] = "Socket"


def start(apart: bool) -> None:
    """Starts the session, and chooses this rank's GPU. Ends the program if ranks share a GPU and are not `apart`."""
    if not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU here")
    hvd.init()
    torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    found = sharing(hvd.allgather_object(identity_of(torch.cuda.current_device())))
    if apart:
        seem_apart(hvd.rank())
    elif found and "NCCL_HOSTID" not in os.environ and os.environ.get("PERSEUS_NCCL_LIBRARY") != "none":
        listed = " and ".join(map(str, found[0]))
        raise SystemExit(
            f"ranks {listed} have the same GPU, which NCCL refuses ('Duplicate GPU'): give each rank its own, pass "
            "--apart (NCCL then connects them by sockets), or set PERSEUS_NCCL_LIBRARY=none to go through host memory"
        )
    if hvd.rank() == 0:
        shared = f"; ranks that share a GPU: {found}" if found else ""
        print(f"{torch.cuda.get_device_name()}, {hvd.size()} ranks{shared}", flush=True)
