"""Kills a rank with four buckets in flight, and measures the time until the other rank gets its error.

perseusrun -np 2 python -m benchmarks.first_hour.lost_rank
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch

import perseus_like.torch as hvd

from .ranks import sized, start

BUCKETS = 4
ELEMENTS = sized(16 << 20, 1000)


def main() -> None:
    note = Path(sys.argv[1])  # the time of the end of rank 1
    start(apart=torch.cuda.device_count() < 2)
    buckets = [torch.ones(ELEMENTS, device="cuda") for _ in range(BUCKETS)]
    try:
        for step in range(10**6):
            handles = [hvd.allreduce_async_(bucket, name=str(number)) for number, bucket in enumerate(buckets)]
            if step == 20 and hvd.rank() == 1:
                note.write_text(repr(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)
            for handle in handles:
                hvd.synchronize(handle)
            torch.cuda.synchronize()
    except hvd.HorovodInternalError as error:
        took = time.time() - float(note.read_text())
        print(f"ERROR after {took:.2f} s: {error}", flush=True)
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
