"""Read-only data of which a host has one copy: one rank loads it, and the ranks of the host map the same memory."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import io
import mmap
import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np

from ..errors import HorovodInternalError, TransportError
from ..objects import allgather_object
from ..session import session
from . import mapped
from .host_sets import ranks_of_hosts

T = TypeVar("T")

_ALIGNMENT = 64  # of each tensor: vector instructions and frameworks expect it
_WRITE_BYTES = 8 << 20  # so that a signal interrupts a copy soon
_CONNECT_SECONDS = 60.0
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


class ArrayPickler(pickle.Pickler):
    """Pickles an object, and gives the memory of its arrays to `buffer_callback`. Adapters extend it."""

    def __init__(self, file: io.BytesIO, buffer_callback: Callable[[pickle.PickleBuffer], Any]) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) in (np.ndarray, np.memmap) and not obj.dtype.hasobject:
            # NumPy copies arrays that are not contiguous, and np.memmap, into the pickle itself.
            plain: np.ndarray[Any, Any] = np.asarray(obj)
            contiguous = plain.flags.c_contiguous or plain.flags.f_contiguous
            return (plain if contiguous else np.ascontiguousarray(plain)).__reduce_ex__(5)
        return NotImplemented


@dataclass(frozen=True)
class _Offer:
    """A rank's message to all: where it runs and, from the rank that loads, where the others get the file."""

    address: str = ""
    nbytes: int = 0
    index_at: int = 0
    failure: str = ""


def share(make: Callable[[], T], name: str, pickler: type[ArrayPickler] = ArrayPickler) -> T:
    """Returns the object that `make` returns on the first rank of this host, in read-only memory. Collective.

    Args:
        make: a function without arguments that returns the object.
        name: names the call in messages. It is the same on all ranks.
        pickler: the class that gives the memory of tensors away when it pickles the object.

    Returns:
        An equal object on every rank. The memory is freed when no rank of the host uses a part of it any more.

    Raises:
        RuntimeError: `make` failed on a rank, or its object cannot be pickled. The rank on which it failed raises the
            original exception.
        UnavailableError: this rank cannot map the memory.
        HorovodInternalError: a rank has ended, or `init` was not called.
    """
    core = session.core
    is_first = core.local_rank() == 0
    offer = _Offer()
    error: Exception | None = None
    # The ranks that do not load have a file to exchange, too.
    fd = os.memfd_create("perseus-shared", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with io.FileIO(fd, "r+") as own:
        if is_first:
            offer, error = _load(own, make, offer, pickler)
        offers = allgather_object(offer, f"shared.{name}")
        if error is not None:
            raise error
        _raise_failure(offers, name)
        host = next(ranks for ranks in ranks_of_hosts() if core.rank() in ranks)
        if len(host) == 1:
            return cast(T, _mapped(own, offer, name))
        with _received(own, offers[host[0]], host.index(core.rank()), len(host), name) as received:
            return cast(T, _mapped(received, offers[host[0]], name))


def _load(
    file: io.FileIO, make: Callable[[], Any], offer: _Offer, pickler: type[ArrayPickler]
) -> tuple[_Offer, Exception | None]:
    """Puts the object into the file. Returns an error instead of raising it: the other ranks wait for the offer."""
    try:
        nbytes, index_at = _write_object(file.fileno(), make(), pickler)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
        address = session.core.new_rendezvous_address()
        return replace(offer, address=address, nbytes=nbytes, index_at=index_at), None
    except Exception as error:
        return replace(offer, failure=f"{type(error).__name__}: {error}"), error


def _write_object(fd: int, obj: Any, pickler: type[ArrayPickler]) -> tuple[int, int]:
    """Writes the memory of the tensors, then the index and the pickle. Returns the size, and the index's offset."""
    buffers: list[memoryview] = []
    pickled = io.BytesIO()
    pickler(pickled, lambda buffer: buffers.append(buffer.raw())).dump(obj)
    places: list[tuple[int, int]] = []
    end = 0
    for buffer in buffers:
        places.append((end, buffer.nbytes))
        end += -(-buffer.nbytes // _ALIGNMENT) * _ALIGNMENT
    index = pickle.dumps((places, pickled.getvalue()))
    os.ftruncate(fd, end + len(index))
    for (offset, _), buffer in zip(places, buffers, strict=True):
        _write(fd, buffer, offset)
    _write(fd, memoryview(index), end)
    return end + len(index), end


def _write(fd: int, data: memoryview, offset: int) -> None:
    # A write reports that memory has run out; a store to mapped memory would end the process.
    written = 0
    while written < data.nbytes:
        written += os.pwrite(fd, data[written : written + _WRITE_BYTES], offset + written)


def _raise_failure(offers: Sequence[_Offer], name: str) -> None:
    for rank, offer in enumerate(offers):
        if offer.failure:
            raise RuntimeError(
                f"hvd.shared({name!r}): rank {rank}, which loads for its host, failed: {offer.failure}; the traceback "
                "of that rank says where"
            )


def _received(own: io.FileIO, offer: _Offer, index: int, count: int, name: str) -> io.FileIO:
    """Returns the file of the host's first rank. Collective over the ranks of the host."""
    try:
        return io.FileIO(session.core.file_of_first(offer.address, index, count, own.fileno(), _CONNECT_SECONDS))
    except HorovodInternalError as error:
        text = f"hvd.shared({name!r}): cannot get the memory from the first rank of this host: {error}"
        raise type(error)(text) from error


def _mapped(file: io.FileIO, offer: _Offer, name: str) -> Any:
    """Maps the file and makes the object, whose tensors keep the mapping."""
    seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
    if os.fstat(file.fileno()).st_size != offer.nbytes or seals & _SEALS != _SEALS:
        raise TransportError(
            f"hvd.shared({name!r}): the first rank of this host sent memory of another size or without seals; check "
            "that all ranks run the same version of perseus_like"
        )
    mapping = mapped(file, offer.nbytes, f"hvd.shared({name!r})", mmap.ACCESS_READ)
    whole = memoryview(mapping)
    places, pickled = pickle.loads(whole[offer.index_at :])
    obj = pickle.loads(pickled, buffers=[whole[offset : offset + nbytes] for offset, nbytes in places])
    if not faulthandler.is_enabled():
        # torch has no read-only tensors: a write ends the process. This shows the line of Python that writes.
        with contextlib.suppress(AttributeError, ValueError, RuntimeError, OSError):  # stderr may be no file
            faulthandler.enable()
    return obj
