"""Tensors in memory that torch shares between processes: the ranks of a host reduce them in place."""

from __future__ import annotations

import logging

import torch

from perseus_like.host_memory.registration import Registry

from ..compat.core import keeps_identity

_log = logging.getLogger("perseus_like")
_warned: set[str] = set()


def warn_once(text: str) -> None:
    """Logs a warning at its first occurrence in this process."""
    if text not in _warned:
        _warned.add(text)
        _log.warning("%s", text)


_storages = Registry(warn_once)


def register_if_shared(tensor: torch.Tensor) -> None:
    """Registers the storage of a CPU tensor if torch shares it, as after `tensor.share_memory_()`."""
    if not tensor.is_shared() or not keeps_identity():  # type: ignore[no-untyped-call]
        return
    storage = tensor.untyped_storage()
    if not _storages.knows(storage):
        _storages.register(storage, storage.data_ptr(), storage.nbytes())
