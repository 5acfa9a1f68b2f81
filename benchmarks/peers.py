"""The peers: for each library, a function that starts it on the ranks of a job, and its allreduce."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from . import oneccl
from .harness import NOT_INSTALLED, Missing, Reducer, World


def start_gloo(world: World) -> None:
    """torch.distributed's default process group."""
    if not dist.is_gloo_available():
        raise Missing("torch is built without gloo")
    if not dist.is_initialized():
        store = f"file://{world.folder / 'gloo'}"
        dist.init_process_group("gloo", init_method=store, rank=world.rank, world_size=world.size)


def stop() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def has_mpi4py() -> bool:
    return importlib.util.find_spec("mpi4py") is not None


def _gloo(world: World) -> Reducer:
    start_gloo(world)
    return lambda tensor: lambda: dist.all_reduce(tensor)


def _mpi4py(world: World) -> Reducer:
    if not has_mpi4py():
        raise Missing(NOT_INSTALLED)
    if "MPI" not in world.description and "mpi" not in world.description:
        raise Missing("this world was not started by mpirun")
    from mpi4py import MPI

    comm: Any = MPI.COMM_WORLD
    if comm.Get_size() != world.size:
        raise Missing(f"mpi4py sees a world of {comm.Get_size()}")

    def reducer(tensor: torch.Tensor) -> Callable[[], object]:
        inputs, outputs = tensor.numpy(), torch.empty_like(tensor).fill_(0).numpy()
        return lambda: comm.Allreduce(inputs, outputs)

    return reducer


def horovod() -> Any:
    """Returns Horovod's torch module. Missing if it is not installed, or is an alias of the package measured here."""
    try:
        importlib.metadata.version("horovod")
    except importlib.metadata.PackageNotFoundError:
        raise Missing(NOT_INSTALLED) from None
    try:
        import horovod.torch as module
    except ImportError as error:
        raise Missing(f"cannot be imported: {error}") from None
    return module


def start_horovod(world: World) -> Any:
    module = horovod()
    module.init()
    if module.size() != world.size:
        raise Missing(f"sees a world of {module.size()}")
    return module


def _horovod(world: World) -> Reducer:
    module = start_horovod(world)
    return lambda tensor: lambda: module.allreduce_(tensor, op=module.Sum, name=f"peer.{tensor.numel()}")


PEERS: dict[str, Callable[[World], Reducer]] = {
    "gloo": _gloo,
    "MPI": _mpi4py,
    "oneCCL": oneccl.start,
    "Horovod": _horovod,
}


def start_peers(world: World) -> tuple[dict[str, Reducer], dict[str, str]]:
    """Starts the peers. Returns those that are available, the same on all ranks, and the reasons for the others."""
    found: dict[str, Reducer] = {}
    missing: dict[str, str] = {}
    for name in PEERS:
        _start_peer(name, world, found, missing)
    return found, missing


def _start_peer(name: str, world: World, found: dict[str, Reducer], missing: dict[str, str]) -> None:
    try:
        found[name] = PEERS[name](world)
    except Missing as reason:
        missing[name] = str(reason)
