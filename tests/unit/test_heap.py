"""The C library keeps or returns memory that was freed."""

from __future__ import annotations

import ctypes
import os
import sys

import pytest

from tests.job import run_to_end, succeeded

# Prints the page faults of each round, which allocates and frees three blocks of 2048 pages.
PROGRAM = """
import resource
import numpy as np
from perseus_like.host_memory.malloc_settings import keep_freed_memory
keep_freed_memory(8 << 20, 64 << 20)
before = 0
for _ in range(5):
    blocks = [np.zeros(8 << 20, np.uint8) for _ in range(3)]
    for block in blocks:
        block.fill(1)
    del block, blocks
    now = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    print(now - before)
    before = now
"""


def faults(**variables: str) -> list[int]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    variables["NUMPY_MADVISE_HUGEPAGE"] = "0"
    done = succeeded(run_to_end([sys.executable, "-c", PROGRAM], inherited=environment | variables))
    return [int(line) for line in done.stdout.split()]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library is not glibc")
def test_freed_blocks_are_allocated_again_without_page_faults() -> None:
    assert max(faults()[2:]) < 2048


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library is not glibc")
def test_limits_in_the_environment_stay() -> None:
    assert min(faults(MALLOC_MMAP_THRESHOLD_=str(1 << 20))) >= 3 * 2048
