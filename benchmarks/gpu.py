"""Measures the GPU's time for packing, and the host's time for a collective and for a step's hooks.

    perseusrun -np 1 python -m benchmarks.gpu
    perseusrun -np 2 python -m benchmarks.gpu              # two GPUs
    perseusrun -np 2 python -m benchmarks.gpu --apart      # one GPU: see gpu.md

Packing is compared with a copy of the same bytes within the device, as torch's profiler times the kernels. A call may
need several launches, whose times are added.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

import perseus_like.torch as hvd

from .first_hour.ranks import start
from .shapes import resnet_shapes

STEPS = 50


def microseconds_per_call(events: Iterable[Any], name: str, calls: int) -> float:
    """Returns the time of all kernels with this in their name, for one call: a call may launch several."""
    return float(sum(event.device_time_total for event in events if name in event.key.lower())) / calls


def kernel_microseconds(action: Callable[[], object], name: str) -> float:
    """Returns the time of the kernels whose names contain `name` in one call of `action`."""
    for _ in range(5):
        action()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(STEPS):
            action()
        torch.cuda.synchronize()
    return microseconds_per_call(profile.key_averages(), name, STEPS)


def shapes_to_pack() -> list[tuple[int, ...]]:
    """Returns the shapes of ResNet-50, the single element first: without padding, all others would be unaligned."""
    *others, single = resnet_shapes()
    return [single, *others]


def packing() -> None:
    tensors = [torch.ones(shape, device="cuda") for shape in shapes_to_pack()]
    source = torch.ones(sum(tensor.numel() for tensor in tensors), device="cuda")
    target = torch.empty_like(source)
    copy = kernel_microseconds(lambda: target.copy_(source), "memcpy")

    def group() -> object:
        return hvd.grouped_allreduce(tensors, op=hvd.Sum, name="group")

    for kernel in ("perseus_pack", "perseus_unpack"):
        took = kernel_microseconds(group, kernel)
        if took:
            part = f"{copy / took:.0%} of a copy's bandwidth"
            print(f"{kernel}: {took:.0f} us for {len(tensors)} tensors, {part}")


def collectives() -> None:
    """Prints the host's time until a small and a large allreduce are queued, and until their results are there."""
    for elements, text in ((1, "1 float"), (16 << 20, "64 MiB")):
        tensor = torch.ones(elements, device="cuda")
        queued, whole = [], []
        for _ in range(STEPS):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            hvd.allreduce_(tensor, op=hvd.Max, name=text)
            queued.append(time.perf_counter() - begin)
            torch.cuda.synchronize()
            whole.append(time.perf_counter() - begin)
        if hvd.rank() == 0:
            for what, seconds in (("until queued", queued), ("until there", whole)):
                print(f"allreduce of {text}, {what}: {statistics.median(seconds[5:]) * 1e6:.0f} us")


def model() -> torch.nn.Module:
    """Returns a model with 80 layers and 160 parameters."""
    return torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(80))).cuda()


Prepare = Callable[[torch.nn.Module, torch.optim.Optimizer], torch.optim.Optimizer]


def step_seconds(prepare: Prepare) -> tuple[float, float]:
    """Returns the host's time until a step is queued, and the time of the whole step."""
    net = model()
    optimizer = prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
    inputs = torch.ones(64, 256, device="cuda")
    queued, whole = [], []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        net(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        queued.append(time.perf_counter() - begin)
        torch.cuda.synchronize()
        whole.append(time.perf_counter() - begin)
    return statistics.median(queued[5:]), statistics.median(whole[5:])


def hooks() -> None:
    plain = step_seconds(lambda net, optimizer: optimizer)
    ours = step_seconds(
        lambda net, optimizer: hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())
    )
    if hvd.rank() == 0:
        for what, mine, alone in zip(("until queued", "whole"), ours, plain, strict=True):
            print(f"a step of 160 parameters, {what}: {mine * 1e6:.0f} us, by itself {alone * 1e6:.0f} us")
        print(f"hooks add {(ours[0] - plain[0]) * 1e6:.0f} us of the host to the step")


PARTS: dict[str, Callable[[], None]] = {"packing": packing, "collectives": collectives, "hooks": hooks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=tuple(PARTS), help="measure this alone")
    parser.add_argument("--apart", action="store_true", help="ranks share a GPU: NCCL takes each for a host of its own")
    chosen = parser.parse_args()
    start(chosen.apart)
    for name, part in PARTS.items():
        if chosen.only in (None, name):
            part()
    hvd.shutdown()


if __name__ == "__main__":
    main()
