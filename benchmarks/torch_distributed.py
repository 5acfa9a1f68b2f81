"""torch.distributed over `perseus` and over `gloo`, in turns in one run: one float, 64 MB, and a step of torch's DDP.

`perseusrun -np 2 python -m benchmarks.torch_distributed`. Ratios count; times drift with the machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

LAYERS, WIDTH, ROWS = 12, 1536, 32  # 113 MB of parameters


def seconds(call: Callable[[], Any], repeats: int) -> float:
    """The median of one call, ranks beginning together."""
    times = []
    for _ in range(repeats):
        dist.barrier()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def all_reduce(group: Any, elements: int, calls: int, repeats: int) -> float:
    tensor = torch.zeros(elements)

    def run() -> None:
        for _ in range(calls):
            dist.all_reduce(tensor, group=group)

    run()
    return seconds(run, repeats) / calls


def make_step(group: Any, layers: int, width: int) -> Callable[[], None]:
    """A step of training; without a group by this rank alone."""
    torch.manual_seed(1)
    model: nn.Module = nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])
    if group is not None:
        model = nn.parallel.DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = torch.randn(ROWS, width)

    def step() -> None:
        optimizer.zero_grad()
        model(rows).sum().backward()
        optimizer.step()

    step()
    return step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="see if it runs")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    dist.init_process_group("perseus")
    groups = {"perseus": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    rounds, width = (1, 64) if quick else (3, WIDTH)
    results: dict[str, dict[str, float]] = {name: {} for name in groups}
    for _ in range(rounds):
        for name, group in groups.items():
            mine = {
                "one float": all_reduce(group, 1, 100, 1 if quick else 5),
                "64 MB": all_reduce(group, 1 << (10 if quick else 24), 1, 1 if quick else 5),
                "DDP step": seconds(make_step(group, LAYERS, width), 1 if quick else 4),
            }
            for key, value in mine.items():
                results[name][key] = min(value, results[name].get(key, value))
    local = seconds(make_step(None, LAYERS, width), 1 if quick else 4)
    if dist.get_rank() == 0:
        for key in ("one float", "64 MB", "DDP step"):
            ours, theirs = results["perseus"][key], results["gloo"][key]
            line = f"{key:10} perseus {ours * 1e3:9.3f} ms   gloo {theirs * 1e3:9.3f} ms   {ours / theirs:.2f} of gloo"
            if key == "DDP step":
                overhead = (ours - local) / (theirs - local)
                line += f"; alone {local * 1e3:.3f} ms, overhead {overhead:.2f} of gloo's"
            print(line, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
