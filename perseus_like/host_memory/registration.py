"""Registers memory that programs share between processes, so that the ranks of a host reduce it in place."""

from __future__ import annotations

import logging
import mmap
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import UnavailableError
from ..session import session

_log = logging.getLogger("perseus_like")
# If a tensor has this number of elements or more, copying it takes much longer than a check for shared memory.
LARGE_ELEMENTS = 1 << 18


class Registry:
    """The core's registrations of shared memory, each for as long as an object that owns the memory exists."""

    def __init__(self, report: Callable[[str], None]) -> None:
        """`report` is called with a text if memory cannot be registered; collectives then copy it."""
        self._report = report
        # The session, and the registration in it, which is None if the memory is copied.
        self._registered: weakref.WeakKeyDictionary[Any, tuple[int, Any]] = weakref.WeakKeyDictionary()

    def knows(self, owner: Any) -> bool:
        known = self._registered.get(owner)
        return known is not None and known[0] == session.generation

    def register(self, owner: Any, address: int, nbytes: int) -> None:
        """Registers memory that a file in memory is behind, once in a session."""
        registration = None
        if session.core.local_size() > 1:
            try:
                registration = session.core.register_shared_memory(address, nbytes)
            except UnavailableError as error:
                self._report(f"{nbytes / 1e6:.0f} MB of shared memory are copied, which is slower: {error}")
        self._registered[owner] = session.generation, registration


_mappings = Registry(_log.debug)


def register_if_mapped(array: np.ndarray[Any, Any]) -> None:
    """Registers the mapping that an array is a view of, such as that of `multiprocessing.shared_memory`."""
    owner: Any = array.base
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    if isinstance(owner, mmap.mmap) and not _mappings.knows(owner):
        whole = np.frombuffer(owner, np.uint8)
        _mappings.register(owner, whole.ctypes.data, whole.nbytes)
