"""Adds and gathers CPU tensors by a tensor-parallel group of sglang, and prints its class and the results."""

from __future__ import annotations

import os

import torch
from sglang.srt.distributed import parallel_state
from sglang.srt.plugins import load_plugins

load_plugins()  # as sglang's servers and schedulers do first
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
parallel_state.init_distributed_environment(size, rank, "env://", rank, "gloo")
group = parallel_state.init_model_parallel_group([list(range(size))], rank, "gloo", group_name="tp")
results = []
for dtype in (torch.float32, torch.bfloat16):
    hidden = torch.arange(12, dtype=torch.float32).view(3, 4).mul(rank + 1).to(dtype)
    results.append(group.all_reduce(hidden).sum().item())
    results.append(group.all_gather(torch.full((2, 3), float(rank), dtype=dtype), dim=1).sum(0).tolist())
results.append(group.broadcast_object({"rank": rank}, src=size - 1))
print(f"RESULT {type(group).__name__} {results}", flush=True)
parallel_state.destroy_distributed_environment()
