"""torch.distributed over `perseus` and over `gloo`, in turns in one run: one float, 64 MB, and a step of training.

`perseusrun -np 2 python -m benchmarks.torch_distributed`. Ratios count; times drift with the machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from perseus_like.torch.nn import parallel

LAYERS, WIDTH, ROWS = 12, 1536, 32  # 113 MB of parameters
ALONE, PERSEUS, GLOO, OURS = "alone", "perseus", "gloo", "ours"

Call = Callable[[], Any]
Wrap = Callable[[nn.Module], nn.Module]


def medians(calls: Mapping[str, Call], rounds: int, repeats: int) -> dict[str, float]:
    """The seconds that each takes, all of them in turn, ranks beginning together. A turn begins untimed."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            for _ in range(repeats):
                dist.barrier()
                start = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) for name, taken in times.items()}


def all_reduce(group: Any, elements: int, calls: int) -> Call:
    tensor = torch.zeros(elements)

    def run() -> None:
        for _ in range(calls):
            dist.all_reduce(tensor, group=group)

    return run


def make_step(wrap: Wrap, width: int) -> Call:
    torch.manual_seed(1)
    model = wrap(nn.Sequential(*[nn.Linear(width, width) for _ in range(LAYERS)]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = torch.randn(ROWS, width)

    def step() -> None:
        optimizer.zero_grad()
        model(rows).sum().backward()
        optimizer.step()

    step()
    return step


def compare(key: str, seconds: Mapping[str, float]) -> str:
    ours, theirs = seconds[PERSEUS], seconds[GLOO]
    return f"{key:9} perseus {ours * 1e3:9.3f} ms   gloo {theirs * 1e3:9.3f} ms   {ours / theirs:.2f} of gloo"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="see if it runs")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    dist.init_process_group("perseus")
    groups = {PERSEUS: dist.group.WORLD, GLOO: dist.new_group(backend="gloo")}
    rounds, width, large = (1, 64, 1 << 10) if quick else (5, WIDTH, 1 << 24)
    lines = []
    for key, elements, calls in (("one float", 1, 100), ("64 MB", large, 1)):
        took = medians({name: all_reduce(group, elements, calls) for name, group in groups.items()}, rounds, 5)
        lines.append(compare(key, {name: seconds / calls for name, seconds in took.items()}))
    wraps: dict[str, Wrap] = {
        ALONE: lambda model: model,
        PERSEUS: lambda model: nn.parallel.DistributedDataParallel(model, process_group=groups[PERSEUS]),
        GLOO: lambda model: nn.parallel.DistributedDataParallel(model, process_group=groups[GLOO]),
        OURS: parallel.DistributedDataParallel,
    }
    took = medians({name: make_step(wrap, width) for name, wrap in wraps.items()}, rounds, 4)
    lines.append(compare("DDP step", took))
    over = {name: took[name] - took[ALONE] for name in (PERSEUS, GLOO, OURS)}
    lines.append(f"our DDP {took[OURS] * 1e3:9.3f} ms   alone {took[ALONE] * 1e3:9.3f} ms")
    lines.append(
        f"a step over the one alone, in parts of what torch's DDP over gloo adds: torch's DDP over perseus "
        f"{over[PERSEUS] / over[GLOO]:.2f}, our DDP {over[OURS] / over[GLOO]:.2f}"
    )
    if dist.get_rank() == 0:
        print("\n".join(lines), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
