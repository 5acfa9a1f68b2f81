"""torch.distributed over `perseus` and over `gloo`, in turns in one run: one float, and 64 MB.

`perseusrun -np 2 python -m benchmarks.torch_distributed`. Ratios count; times drift with the machine. A step of DDP is
measured by `benchmarks.training_step`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

import perseus_like.torch.distributed  # noqa: F401  # torch before 2.5 does not load it by itself

PERSEUS, GLOO = "perseus", "gloo"

Call = Callable[[], Any]


def medians(calls: Mapping[str, Call], rounds: int, repeats: int) -> dict[str, float]:
    """Returns the median seconds of each call. Calls take turns, and all ranks start a call together.

    The first call of a turn does not count.
    """
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
    rounds, large = (1, 1 << 10) if quick else (5, 1 << 24)
    lines = []
    for key, elements, calls in (("one float", 1, 100), ("64 MB", large, 1)):
        took = medians({name: all_reduce(group, elements, calls) for name, group in groups.items()}, rounds, 5)
        lines.append(compare(key, {name: seconds / calls for name, seconds in took.items()}))
    if dist.get_rank() == 0:
        print("\n".join(lines), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
