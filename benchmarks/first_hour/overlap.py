"""Traces a step of DDP over `perseus`, and prints how much of the possible overlap of NCCL and backward it has.

perseusrun -np 2 python -m benchmarks.first_hour.overlap --trace trace.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import perseus_like.torch as hvd

from .ranks import keep, sized, start

Span = tuple[float, float]  # begin and end, in microseconds


def merged(spans: Sequence[Span]) -> list[Span]:
    """Returns the spans in their order; those that overlap become one."""
    result: list[Span] = []
    for begin, end in sorted(spans):
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        else:
            result.append((begin, end))
    return result


def length(spans: Sequence[Span]) -> float:
    return sum(end - begin for begin, end in spans)


def overlap(some: Sequence[Span], others: Sequence[Span]) -> float:
    """Returns how long both run, as a fraction of the longest possible time.

    The longest possible time is the shorter one of two: the time of `some`, and the time of `others` after `some` has
    started. If NCCL is slow, backward ends long before it.
    """
    ours, theirs = merged(some), merged(others)
    if not ours:
        return 0.0
    later = [(max(begin, ours[0][0]), end) for begin, end in theirs if end > ours[0][0]]
    both = sum(max(0.0, min(end, stop) - max(begin, first)) for begin, end in ours for first, stop in later)
    return both / max(min(length(ours), length(later)), 1e-9)


def kernels_of(trace: dict[str, Any]) -> tuple[list[Span], list[Span]]:
    """Returns the spans of NCCL's kernels and those of torch's, from a trace of torch's profiler."""
    nccl: list[Span] = []
    compute: list[Span] = []
    for event in trace["traceEvents"]:
        if event.get("cat") != "kernel":
            continue
        span = (float(event["ts"]), float(event["ts"]) + float(event["dur"]))
        name = event["name"].lower()
        if "nccl" in name:
            nccl.append(span)
        elif "perseus" not in name:
            compute.append(span)
    return nccl, compute


def traced(step: Callable[[], object], trace: Path) -> tuple[list[Span], list[Span]]:
    """Writes a trace of one step, and returns the spans of its kernels as `kernels_of` does."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    with torch.profiler.profile() as profile:
        step()
        torch.cuda.synchronize()
    trace.parent.mkdir(parents=True, exist_ok=True)
    profile.export_chrome_trace(str(trace))
    return kernels_of(json.loads(trace.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True, help="the file for rank 0's trace")
    chosen = parser.parse_args()
    start(apart=torch.cuda.device_count() < 2)
    dist.init_process_group("perseus")
    width = sized(4096, 64)
    layers = [torch.nn.Linear(width, width) for _ in range(8)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers).cuda(), gradient_as_bucket_view=True)
    inputs = torch.ones(width, width, device="cuda")

    def step() -> None:
        model.zero_grad()
        model(inputs).square().mean().backward()

    nccl, compute = traced(step, chosen.trace if hvd.rank() == 0 else Path(f"{chosen.trace}.{hvd.rank()}"))
    if hvd.rank() == 0:
        print(f"OVERLAP {overlap(nccl, compute):.2f} of what {len(nccl)} kernels of NCCL allow", flush=True)
    keep({"overlap": overlap(nccl, compute)})
    dist.destroy_process_group()
    hvd.shutdown()


if __name__ == "__main__":
    main()
