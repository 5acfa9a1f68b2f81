"""torch's own NCCL in the arrangement of the other steps: two ranks, on one GPU if there is one only.

    perseusrun -np 2 python -m benchmarks.first_hour.control

If this fails, NCCL does not work in this arrangement, and failures of the other steps say nothing about this library.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from .ranks import seem_apart


def main() -> None:
    rank, size = int(os.environ["PERSEUS_RANK"]), int(os.environ["PERSEUS_SIZE"])
    torch.cuda.set_device(rank % torch.cuda.device_count())
    if torch.cuda.device_count() < size:
        seem_apart(rank)
    dist.init_process_group("nccl", init_method="env://", rank=rank, world_size=size)
    for count in (1, 1000, 1 << 24):
        tensor = torch.full((count,), rank + 1.0, device="cuda")
        dist.all_reduce(tensor)
        expected = size * (size + 1) / 2
        if not bool((tensor == expected).all()):
            raise SystemExit(f"a sum of {count} elements is wrong: {tensor[:4].tolist()} in place of {expected}")
    parts = [torch.empty(8, device="cuda") for _ in range(size)]
    dist.all_gather(parts, torch.full((8,), float(rank), device="cuda"))
    if [int(part[0]) for part in parts] != list(range(size)):
        raise SystemExit(f"an all_gather is wrong: {parts}")
    torch.cuda.synchronize()
    nccl: Any = torch.cuda.nccl
    print(f"rank {rank}: torch's own NCCL {nccl.version()} works here", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
