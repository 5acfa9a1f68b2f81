"""Measures the GPU's time for packing and the host's time for a step's hooks.

    perseusrun -np 1 python -m benchmarks.gpu
    perseusrun -np 2 python -m benchmarks.gpu       # two GPUs, or one: see gpu.md

Packing is compared with a copy of the same bytes within the device, as torch's profiler times the kernels.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

import perseus_like.torch as hvd

from .shapes import resnet_shapes

STEPS = 50


def kernel_microseconds(action: Callable[[], object], name: str) -> float:
    """Returns the mean time of one launch of the kernels whose names contain `name`."""
    for _ in range(5):
        action()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(STEPS):
            action()
        torch.cuda.synchronize()
    events = [event for event in profile.key_averages() if name in event.key.lower()]
    return float(sum(event.device_time_total for event in events) / max(1, sum(event.count for event in events)))


def packing() -> None:
    tensors = [torch.ones(shape, device="cuda") for shape in resnet_shapes()]
    source = torch.ones(sum(tensor.numel() for tensor in tensors), device="cuda")
    target = torch.empty_like(source)
    copy = kernel_microseconds(lambda: target.copy_(source), "memcpy")

    def group() -> object:
        return hvd.grouped_allreduce(tensors, op=hvd.Sum, name="group")

    for kernel in ("perseus_pack", "perseus_unpack"):
        took = kernel_microseconds(group, kernel)
        if took:
            print(f"{kernel}: {took:.0f} us for {len(tensors)} tensors, {copy / took:.0%} of a copy's speed")


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


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU here")
    hvd.init()
    torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    if hvd.rank() == 0:
        print(f"{torch.cuda.get_device_name()}, {hvd.size()} ranks")
    packing()
    hooks()
    hvd.shutdown()


if __name__ == "__main__":
    main()
