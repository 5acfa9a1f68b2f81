"""Writable memory that the ranks of one host map: a file without a name, which the first of them makes."""

from __future__ import annotations

import contextlib
import fcntl
import io
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import DisagreementError, HorovodInternalError, UnavailableError
from ..objects import allgather_object, first_difference
from ..process_sets import ProcessSet
from ..session import session
from .host_sets import is_on_one_host

_CONNECT_SECONDS = 60.0
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass(frozen=True)
class _Offer:
    """A rank's message to all: what it shares, and from the first rank, where the others get the file."""

    nbytes: int
    contents: list[str]
    address: str = ""
    failure: str = ""


def require_one_host(what: str, process_set: ProcessSet) -> int:
    """Returns the number of ranks of the set. UnavailableError unless all of them are on this host."""
    if is_on_one_host(process_set):
        return len(process_set.ranks or [0])
    raise UnavailableError(
        f"{what}: the ranks are on several hosts, but only ranks of one host can share memory; pass a process set of "
        "ranks of one host"
    )


def map_together(nbytes: int, contents: Sequence[str], what: str, process_set: ProcessSet) -> mmap.mmap:
    """Returns new memory of zeros, which all ranks of the set map. Collective over the set, which is on one host.

    `contents` describes what the memory holds. DisagreementError, the same on all ranks, if the ranks differ.
    Pages use memory once a rank has written to them.
    """
    size = require_one_host(what, process_set)
    index = (process_set.ranks or [0]).index(session.core.rank())
    with io.FileIO(os.memfd_create("perseus-host-memory", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "r+") as own:
        offer = _Offer(nbytes, list(contents))
        if index == 0:
            offer = _first_offer(own, offer)
        offers = allgather_object(offer, "host_memory.offers", process_set)
        _check(offers, what, process_set)
        if size == 1:
            return mapped(own, nbytes, what)
        try:
            found = session.core.file_of_first(offers[0].address, index, size, own.fileno(), _CONNECT_SECONDS)
        except HorovodInternalError as error:
            raise type(error)(f"{what}: cannot get the memory from the first rank of this host: {error}") from error
        with io.FileIO(found, "r+") as received:
            return _mapped_by_all(received, nbytes, what, process_set)


def _first_offer(file: io.FileIO, offer: _Offer) -> _Offer:
    try:
        os.ftruncate(file.fileno(), max(offer.nbytes, 1))
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
        return _Offer(offer.nbytes, offer.contents, session.core.new_rendezvous_address())
    except OSError as error:
        return _Offer(offer.nbytes, offer.contents, failure=str(error))


def _check(offers: Sequence[_Offer], what: str, process_set: ProcessSet) -> None:
    difference = first_difference(dict(zip(process_set.ranks or [0], (each.contents for each in offers), strict=True)))
    if difference is not None:
        raise DisagreementError(
            f"{what}: the ranks share different parameters: at position {difference}; pass the same parameters on all "
            "ranks"
        )
    if offers[0].failure:
        raise UnavailableError(f"{what}: the first rank cannot make the memory: {offers[0].failure}")


def _mapped_by_all(file: io.FileIO, nbytes: int, what: str, process_set: ProcessSet) -> mmap.mmap:
    mapping: mmap.mmap | None = None
    failure: Any = None
    try:
        mapping = mapped(file, nbytes, what)
    except UnavailableError as error:
        failure = error
    gathered = allgather_object("" if failure is None else str(failure), "host_memory.mapped", process_set)
    if failure is not None:
        raise failure
    for rank, text in zip(process_set.ranks or [0], gathered, strict=True):
        if text:
            raise UnavailableError(f"rank {rank} failed: {text}")
    assert mapping is not None
    return mapping


def mapped(file: io.FileIO, nbytes: int, what: str, access: int = mmap.ACCESS_WRITE) -> mmap.mmap:
    """Maps the file, with huge pages if the kernel has them. UnavailableError if a limit forbids it."""
    try:
        mapping = mmap.mmap(file.fileno(), max(nbytes, 1), access=access)
    except OSError as error:
        raise UnavailableError(
            f"{what}: {nbytes >> 20} MiB cannot be mapped: {error}; raise the limit (ulimit -v)"
        ) from error
    for advice in ("MADV_HUGEPAGE", "MADV_DONTDUMP"):
        with contextlib.suppress(AttributeError, OSError):  # not in each kernel
            mapping.madvise(getattr(mmap, advice))
    return mapping
