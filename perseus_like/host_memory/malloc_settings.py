"""Tells glibc what to do with memory that was freed. Other C libraries stay as they are."""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # the numbers in malloc.h
_LARGEST_MMAP_THRESHOLD = 32 << 20  # more is an error before glibc 2.35
# Blocks are a little larger than the tensors in them.
_HEADROOM = 1 << 16
_CHOSEN_BY_USER = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")
_kept = (0, 0)  # the arguments of the call in effect


def return_freed_memory() -> None:
    """Makes the C library return memory that was freed to the system, which it would keep in its heap."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def keep_freed_memory(block_bytes: int, total_bytes: int) -> None:
    """Makes the C library keep freed blocks of up to `block_bytes` for its next allocations, `total_bytes` in all.

    Otherwise it returns the memory of large tensors to the system whenever they are freed, and the next ones begin
    with a page fault for every 4 KiB. Later calls only raise the limits. If the environment sets such limits, they
    stay.
    """
    global _kept
    wanted = (max(block_bytes, _kept[0]), max(total_bytes, _kept[1]))
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is None or wanted == _kept or any(name in os.environ for name in _CHOSEN_BY_USER):
        return
    _kept = wanted
    option(_MMAP_THRESHOLD, min(wanted[0] + _HEADROOM, _LARGEST_MMAP_THRESHOLD))
    option(_TRIM_THRESHOLD, min(wanted[1] + _HEADROOM, (1 << 31) - 1))  # an int of C
