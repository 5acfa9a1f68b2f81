"""Buckets of torch's DistributedDataParallel, moved to memory that the ranks of a host reduce in place.

They are made in C++, where nobody can be asked for other memory, and come again at every step. A bucket that comes for
the second time moves: torch makes its memory one of its own mappings, as it does for whatever is shared with another
process, and arena memory is mapped in its place. Whoever holds the bucket, or a view of it, sees no difference.
"""

from __future__ import annotations

import logging
import os
import weakref

import torch
from torch import Tensor

from perseus_like.buckets import LARGE_BYTES
from perseus_like.session import session

from ..compat.autograd import is_called_by_backward
from ..compat.storage import descriptor_of_mapping, keeps_identity
from ..gradient_memory import say_once
from ..tensors import empty, tensors

_log = logging.getLogger("perseus_like")

_seen: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
# Buckets that have come again, and their bytes in the arena; None for one that had to stay.
_moved: weakref.WeakKeyDictionary[torch.UntypedStorage, Tensor | None] = weakref.WeakKeyDictionary()


def reachable(tensor: Tensor) -> Tensor:
    """The same elements by way of the arena, where the tensor is a bucket that moves; else the tensor."""
    if tensor.nbytes < LARGE_BYTES or tensor.device.type != "cpu" or not is_called_by_backward(__package__):
        return tensor
    if session.core.local_size() == 1 or not tensor.is_contiguous():
        return tensor
    if not keeps_identity():
        say_once(
            "buckets of DistributedDataParallel stay in private memory, where reducing is slower: torch "
            f"{torch.__version__} does not say when their memory goes; torch 2.13 and later do"
        )
        return tensor
    storage = tensor.untyped_storage()
    if storage not in _seen:
        _seen.add(storage)
        return tensor
    if storage not in _moved:
        _moved[storage] = _move(storage)
    memory = _moved[storage]
    if memory is None:
        return tensor
    start = tensor.storage_offset() * tensor.element_size()
    return memory[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)


def _move(storage: torch.UntypedStorage) -> Tensor | None:
    """Its bytes in the arena. None where it has to stay, which is said once."""
    megabytes = storage.nbytes() / 1e6
    try:
        memory = empty(storage.nbytes(), dtype=torch.uint8)
        # torch makes a file in /dev/shm for as long as the move takes. It reserves the room with posix_fallocate and
        # raises RuntimeError if there is none, so that no rank is ended by a write to a full file system.
        descriptor = descriptor_of_mapping(storage)
        try:
            session.core.show_at(storage.data_ptr(), tensors.view(memory))
        finally:
            _forget_file(descriptor)
    except (RuntimeError, OSError) as error:
        say_once(f"a bucket of {megabytes:.0f} MB stays in private memory, where reducing is slower: {error}")
        return None
    _log.debug("a bucket of %.0f MB was moved to shared memory", megabytes)
    return memory


def _forget_file(descriptor: int) -> None:
    """The storage's file is not its memory any more: who is sent it, as by a queue of torch.multiprocessing, gets an
    error of the system and not what it held once.
    """
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)
