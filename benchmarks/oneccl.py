"""oneCCL through its C interface (2022 and later), which has the shape of NCCL's."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import os
from collections.abc import Callable
from pathlib import Path

import torch

from .harness import NOT_INSTALLED, Missing, Reducer, World

FLOAT32, SUM = 7, 0
# Libraries in oneCCL's folder, where the loader does not search. Once they are loaded, oneCCL's plugin finds them.
COMPANIONS = ("libintlc.so.5", "libimf.so", "libirng.so", "libsvml.so", "libsycl.so.9", "libccl.so.2", "libccl.so.1")


class UniqueId(ctypes.Structure):
    """oneCCL's unique id, with more bytes than any version has. It is passed by value, so that does no harm."""

    _fields_ = (("bytes", ctypes.c_char * 4096),)


def _library() -> ctypes.CDLL:
    try:
        files = importlib.metadata.files("oneccl") or []
    except importlib.metadata.PackageNotFoundError:
        raise Missing(NOT_INSTALLED) from None
    found = [Path(str(file.locate())) for file in files if file.name == "libccl.so.2"]
    if not found:
        raise Missing("its package has no libccl.so.2")
    os.environ.setdefault("CCL_PLUGIN", "ONECCL_LEGACY_CPU")
    for name in COMPANIONS:
        beside = found[0].resolve().with_name(name)
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(beside))
    try:
        return ctypes.CDLL(str(found[0]), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise Missing(f"cannot be opened: {error}") from None


def _check(status: int, what: str) -> None:
    if status != 0:
        raise Missing(f"{what} failed with {status}")


def _communicator(library: ctypes.CDLL, world: World) -> ctypes.c_void_p:
    import perseus_like.torch as hvd

    mine = UniqueId()
    if world.rank == 0:
        _check(library.onecclGetUniqueId(ctypes.byref(mine)), "onecclGetUniqueId")
    shared = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
    hvd.broadcast_(shared, 0, name="benchmarks.oneccl")
    communicator = ctypes.c_void_p()
    unique = UniqueId.from_buffer_copy(bytes(shared.numpy()))
    status = library.onecclCommInitRank(ctypes.byref(communicator), world.size, unique, world.rank)
    _check(status, "onecclCommInitRank")
    return communicator


def start(world: World) -> Reducer:
    """Starts oneCCL on all ranks. Missing if it is not installed or cannot start."""
    library = _library()
    communicator = _communicator(library, world)

    def reducer(tensor: torch.Tensor) -> Callable[[], object]:
        out = torch.empty_like(tensor).fill_(0)
        count, stream = ctypes.c_size_t(tensor.numel()), ctypes.c_void_p()
        addresses = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_void_p(out.data_ptr())

        def reduce(keep: object = (tensor, out)) -> None:
            status = library.onecclAllReduce(*addresses, count, FLOAT32, SUM, communicator, stream)
            if status != 0:
                raise RuntimeError(f"onecclAllReduce failed with {status}")

        return reduce

    return reducer
