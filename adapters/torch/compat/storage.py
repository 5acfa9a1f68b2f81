"""The memory of torch's storages."""

from __future__ import annotations

import functools
import mmap
import os

import torch

_MARK = bytes(range(16))


class UnknownMapping(RuntimeError):
    """torch shares memory in a way that is not known here."""


@functools.cache
def keeps_identity() -> bool:
    """Returns whether a weak reference to a storage ends when the storage's memory goes.

    Relies on: `Tensor.untyped_storage()` returning the same object each time.
    Tried with: all. torch 2.1 returns a new object each time, and weak references to it dangle, so this is False.
    Notices: two calls return two objects.
    Lost then: the buckets of torch's DistributedDataParallel stay in private memory, where reducing is slower.
    """
    tensor = torch.zeros(1)
    return tensor.untyped_storage() is tensor.untyped_storage()


def descriptor_of_mapping(storage: torch.UntypedStorage) -> int:
    """Makes the storage's memory a shared mapping of a file, and returns the file's descriptor, which torch owns.

    Relies on: `UntypedStorage._share_fd_cpu_()` returning the descriptor and the size of a file that shows what is
    written to the memory, from its first page on.
    Tried with: all.
    Notices: a mark written to the file does not show in the memory, or the size differs: UnknownMapping.
    Lost then: the buckets of torch's DistributedDataParallel stay in private memory, where reducing is slower.
    """
    descriptor, size = storage._share_fd_cpu_()
    begin = storage[: len(_MARK)]
    before = begin.tolist()
    os.pwrite(descriptor, _MARK, 0)
    shows = bytes(begin.tolist()) == _MARK
    os.pwrite(descriptor, bytes(before), 0)
    if not shows or size != storage.nbytes() or storage.data_ptr() % mmap.PAGESIZE != 0:
        raise UnknownMapping(f"torch {torch.__version__} shares memory in a way that is not known here")
    return int(descriptor)
