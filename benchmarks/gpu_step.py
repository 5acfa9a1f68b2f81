"""A ResNet-50 step on GPUs: by itself, through this library, and through torch's DistributedDataParallel.

    perseusrun -np 1 python -m benchmarks.gpu_step      # bar: not slower than torch's
    perseusrun -np 2 python -m benchmarks.gpu_step      # two GPUs: also how much of the communication backward hides

`--device cpu --batch 2 --image 64 --steps 2` is for seeing that it runs, over gloo.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.nn.parallel import DistributedDataParallel

import perseus_like.torch as hvd

from .resnet50 import resnet50

WARMUP = 10


class Clock:
    """Measures the time of steps, including the work that they have queued on the device."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"

    def milliseconds(self, step: Callable[[], object], steps: int) -> float:
        """Returns the median time of a step."""
        for _ in range(min(WARMUP, steps)):
            step()
        took = []
        for _ in range(steps):
            self._wait()
            begin = time.perf_counter()
            step()
            self._wait()
            took.append(time.perf_counter() - begin)
        return statistics.median(took) * 1e3

    def _wait(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize()


def training_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor) -> Callable[[], None]:
    targets = torch.zeros(len(images), dtype=torch.long, device=images.device)

    def step() -> None:
        optimizer.zero_grad()
        loss: torch.Tensor = torch.nn.functional.cross_entropy(model(images), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)


def join_torch_distributed(backend: str) -> None:
    """Makes torch's default process group of the same ranks, which are on one host."""

    def store_at(port: int) -> TCPStore:
        limit = timedelta(seconds=60)
        return TCPStore("127.0.0.1", port, hvd.size(), hvd.rank() == 0, limit, wait_for_workers=False)

    first = store_at(0) if hvd.rank() == 0 else None
    port = hvd.broadcast_object(first.port if first else None, root_rank=0)
    store = first or store_at(port)
    dist.init_process_group(backend, store=store, rank=hvd.rank(), world_size=hvd.size())


def ours(make: Callable[[], torch.nn.Module], images: torch.Tensor) -> Callable[[], None]:
    model = make()
    optimizer = hvd.DistributedOptimizer(sgd(model), named_parameters=model.named_parameters())
    return training_step(model, optimizer, images)


def torchs(make: Callable[[], torch.nn.Module], images: torch.Tensor) -> Callable[[], None]:
    numbers = [images.device.index] if images.is_cuda else None
    model = DistributedDataParallel(make(), device_ids=numbers, gradient_as_bucket_view=True)
    return training_step(model, sgd(model), images)


def communication(make: Callable[[], torch.nn.Module]) -> Callable[[], None]:
    """Returns a function that reduces the gradients of a step without the step."""
    gradients = [torch.zeros_like(parameter) for parameter in make().parameters()]

    def step() -> None:
        hvd.grouped_allreduce_(gradients, op=hvd.Average, name="all gradients")

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--batch", type=int, default=64, help="images per rank")
    parser.add_argument("--image", type=int, default=224, help="their width and height")
    parser.add_argument("--steps", type=int, default=50)
    chosen = parser.parse_args()
    if chosen.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU here")
    hvd.init()
    device = torch.device("cpu")
    if chosen.device == "cuda":
        if hvd.local_size() > torch.cuda.device_count():
            raise SystemExit(f"{hvd.local_size()} ranks need as many GPUs; torch sees {torch.cuda.device_count()}")
        device = torch.device("cuda", hvd.local_rank())
        torch.cuda.set_device(device)
    images = torch.randn(chosen.batch, 3, chosen.image, chosen.image, device=device)
    images = images.to(memory_format=torch.channels_last)

    def make() -> torch.nn.Module:
        torch.manual_seed(0)
        model = resnet50().to(device)
        for parameter in model.parameters():
            if parameter.dim() == 4:
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
        return model

    join_torch_distributed("nccl" if chosen.device == "cuda" else "gloo")
    clock = Clock(device)
    plain_model = make()
    alone = clock.milliseconds(training_step(plain_model, sgd(plain_model), images), chosen.steps)
    with_torch = clock.milliseconds(torchs(make, images), chosen.steps)
    with_us = clock.milliseconds(ours(make, images), chosen.steps)
    wire = clock.milliseconds(communication(make), chosen.steps)
    if hvd.rank() == 0:
        name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
        print(f"{name}, {hvd.size()} ranks, {chosen.batch} images of {chosen.image} x {chosen.image} each")
        print(f"a step by itself: {alone:.2f} ms; torch's DDP: {with_torch:.2f} ms; ours: {with_us:.2f} ms")
        print(f"ours in torch's time: {with_us / with_torch:.3f} (bar: 1)")
        if hvd.size() > 1:
            hidden = min(1.0, max(0.0, 1 - (with_us - alone) / wire))
            print(f"communication alone takes us {wire:.2f} ms; backward hides {hidden:.0%} of it")
    dist.destroy_process_group()
    hvd.shutdown()


if __name__ == "__main__":
    main()
