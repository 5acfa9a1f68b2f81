"""The peers: for each library, a function that starts it on the ranks of a job, and its allreduce."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from .harness import Result, World

NOT_INSTALLED = "not installed"
# A reducer returns a function that reduces the given tensor once.
Reducer = Callable[[Any], Callable[[], object]]


class Missing(Exception):
    """A peer cannot take part in the measurement. The text says why, and the results show it."""


def start_gloo(world: World) -> Reducer:
    """Makes torch.distributed's default process group."""
    if not dist.is_gloo_available():
        raise Missing("torch is built without gloo")
    if not dist.is_initialized():
        store = f"file://{world.folder / 'gloo'}"
        dist.init_process_group("gloo", init_method=store, rank=world.rank, world_size=world.size)
    return lambda tensor: lambda: dist.all_reduce(tensor)


def has_mpi4py(_: object = None) -> bool:
    return importlib.util.find_spec("mpi4py") is not None


def _mpi4py(world: World) -> Reducer:
    if not has_mpi4py():
        raise Missing(NOT_INSTALLED)
    if "mpi" not in world.description.lower():
        raise Missing("this world was not started by mpirun")
    from mpi4py import MPI

    comm: Any = MPI.COMM_WORLD
    if comm.Get_size() != world.size:
        raise Missing(f"mpi4py sees a world of {comm.Get_size()}")

    def reducer(tensor: torch.Tensor) -> Callable[[], object]:
        inputs, outputs = tensor.numpy(), torch.empty_like(tensor).fill_(0).numpy()
        return lambda: comm.Allreduce(inputs, outputs)

    return reducer


def start_horovod(world: World) -> Any:
    """Returns Horovod's torch module. Missing if it is not installed, or is an alias of the package measured here."""
    try:
        importlib.metadata.version("horovod")
        import horovod.torch as module
    except importlib.metadata.PackageNotFoundError:
        raise Missing(NOT_INSTALLED) from None
    except ImportError as error:
        raise Missing(f"cannot be imported: {error}") from None
    module.init()
    if module.size() != world.size:
        raise Missing(f"sees a world of {module.size()}")
    return module


def _horovod(world: World) -> Reducer:
    module = start_horovod(world)
    return lambda tensor: lambda: module.allreduce_(tensor, op=module.Sum, name=f"peer.{tensor.numel()}")


# --- all of them -----------------------------------------------------------------------------------------------------

PEERS = {"gloo": start_gloo, "MPI": _mpi4py, "Horovod": _horovod}


def start(result: Result, starts: Mapping[str, Callable[[World], Any]] = PEERS) -> dict[str, Any]:
    """Starts these peers. Returns those that are available, the same on all ranks. The result gets the others."""
    found: dict[str, Any] = {}
    for name, begin in starts.items():
        _start_peer(name, begin, result, found)
    return found


def _start_peer(name: str, begin: Callable[[World], Any], result: Result, found: dict[str, Any]) -> None:
    try:
        found[name] = begin(result.world)
    except Missing as reason:
        result.missing[name] = str(reason)
