"""Moves buckets of torch's DistributedDataParallel to memory that the ranks of a host reduce in place.

C++ code of torch allocates the buckets and offers no choice of memory. The same buckets return at every step. A bucket
moves when it returns for the first time: torch makes its memory a mapping, as it does for memory that is shared with
another process, and this module maps arena memory over it. The bucket's address and its views stay valid.
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
from ..gradient_memory import warn_once
from ..tensors import empty, tensors

_log = logging.getLogger("perseus_like")

_seen: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
# The arena memory of each bucket that has returned; None for a bucket that stays in private memory.
_moved: weakref.WeakKeyDictionary[torch.UntypedStorage, Tensor | None] = weakref.WeakKeyDictionary()


def reachable(tensor: Tensor) -> Tensor:
    """Returns the same elements in the arena if the tensor is a bucket that has moved, and otherwise the tensor."""
    if tensor.nbytes < LARGE_BYTES or tensor.device.type != "cpu" or not is_called_by_backward(__package__):
        return tensor
    if session.core.local_size() == 1 or not tensor.is_contiguous():
        return tensor
    if not keeps_identity():
        warn_once(
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
    """Moves a bucket and returns its bytes in the arena. Returns None, with one warning, if that fails."""
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
        warn_once(f"a bucket of {megabytes:.0f} MB stays in private memory, where reducing is slower: {error}")
        return None
    _log.debug("a bucket of %.0f MB was moved to shared memory", megabytes)
    return memory


def _forget_file(descriptor: int) -> None:
    """Replaces the storage's file, which is no longer its memory, by an empty one.

    A process that gets the descriptor, for example from a queue of torch.multiprocessing, then gets an error and not
    an old value.
    """
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)
