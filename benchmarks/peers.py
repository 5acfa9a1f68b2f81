"""The peers: for each library, a function that starts it on the ranks of a job, and its allreduce."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Mapping
from pathlib import Path
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


# --- oneCCL through its C interface (2022 and later), which has the shape of NCCL's ----------------------------------

FLOAT32, SUM = 7, 0
# Libraries in oneCCL's folder, where the loader does not search. Once they are loaded, oneCCL's plugin finds them.
COMPANIONS = ("libintlc.so.5", "libimf.so", "libirng.so", "libsvml.so", "libsycl.so.9", "libccl.so.2", "libccl.so.1")


class UniqueId(ctypes.Structure):
    """oneCCL's unique id, with more bytes than any version has. It is passed by value, so that does no harm."""

    _fields_ = (("bytes", ctypes.c_char * 4096),)


def _oneccl(world: World) -> Reducer:
    import perseus_like.torch as hvd

    try:
        files = importlib.metadata.files("oneccl") or []
        library = next(Path(str(file.locate())) for file in files if file.name == "libccl.so.2")
    except (importlib.metadata.PackageNotFoundError, StopIteration):
        raise Missing(NOT_INSTALLED) from None
    os.environ.setdefault("CCL_PLUGIN", "ONECCL_LEGACY_CPU")
    for name in COMPANIONS:
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(library.resolve().with_name(name)))
    try:
        ccl = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise Missing(f"cannot be opened: {error}") from None

    def check(status: int) -> None:
        if status != 0:
            raise Missing(f"cannot start: status {status}")

    mine, communicator = UniqueId(), ctypes.c_void_p()
    if world.rank == 0:
        check(ccl.onecclGetUniqueId(ctypes.byref(mine)))
    unique = UniqueId.from_buffer_copy(hvd.broadcast_object(bytes(mine), root_rank=0))
    check(ccl.onecclCommInitRank(ctypes.byref(communicator), world.size, unique, world.rank))

    def reducer(tensor: torch.Tensor) -> Callable[[], object]:
        out = torch.empty_like(tensor).fill_(0)
        count, stream = ctypes.c_size_t(tensor.numel()), ctypes.c_void_p()
        addresses = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_void_p(out.data_ptr())

        def reduce(keep: object = (tensor, out)) -> None:
            if status := ccl.onecclAllReduce(*addresses, count, FLOAT32, SUM, communicator, stream):
                raise RuntimeError(f"onecclAllReduce of {tensor.numel()} floats failed with {status}")

        return reduce

    return reducer


# --- all of them -----------------------------------------------------------------------------------------------------

PEERS = {"gloo": start_gloo, "MPI": _mpi4py, "oneCCL": _oneccl, "Horovod": _horovod}


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
