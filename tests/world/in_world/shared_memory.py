"""Measures the shared memory of a host."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import perseus_like.numpy as hvd

MIB = 1 << 20


def shared_memory_bytes() -> int:
    """Returns this process's part of the shared memory that it has mapped: the ranks' sum counts each page once."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss_Shmem:"):
            return int(line.split()[1]) * 1024
    pytest.skip("the kernel does not report Pss_Shmem")


def in_total(value: int) -> int:
    return int(hvd.allreduce(np.array([value], np.int64), op=hvd.Sum)[0])
