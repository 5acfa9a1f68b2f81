"""Measures the GPU's time for packing, and the host's time for a collective and for a step's hooks.

    perseusrun -np 1 python -m benchmarks.gpu
    perseusrun -np 2 python -m benchmarks.gpu              # two GPUs
    perseusrun -np 2 python -m benchmarks.gpu --apart      # one GPU: see gpu.md

Packing is compared with a copy of the same bytes within the device, as torch's profiler times the kernels. A call may
need several launches, whose times are added.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import perseus_like.torch as hvd

from .first_hour.overlap import overlap, traced
from .first_hour.ranks import keep, sized, start
from .gpu_step import join_torch_distributed
from .harness import WIDTH, resnet_shapes

STEPS = sized(50, 6)
ITSELF, OURS, TORCHS = "by itself", "ours", "torch's DDP"

Ways = dict[str, tuple[torch.nn.Module, Any]]


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
    *others, single = resnet_shapes(sized(WIDTH, 2))
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
    ways: dict[str, Callable[[torch.Tensor], object]] = {
        "allreduce": lambda tensor: hvd.allreduce_(tensor, op=hvd.Max, name=f"{tensor.numel()} floats"),
        "torch's own NCCL": lambda tensor: dist.all_reduce(tensor, op=dist.ReduceOp.MAX),
    }
    for elements, text in ((1, "1 float"), (sized(16 << 20, 1000), "64 MiB")):
        tensor = torch.ones(elements, device="cuda")
        queued: dict[str, float] = {}
        for way, reduce in ways.items():
            times = [timed_call(reduce, tensor) for _ in range(STEPS)][5:]
            queued[way], whole = (statistics.median(column) * 1e6 for column in zip(*times, strict=True))
            if hvd.rank() == 0:
                print(f"{way} of {text}, until queued: {queued[way]:.0f} us, until there: {whole:.0f} us")
        if hvd.rank() == 0:
            ours, torchs = queued.values()
            print(f"ours of {text} is queued in {ours / torchs:.2f} of torch's time")


def timed_call(reduce: Callable[[torch.Tensor], object], tensor: torch.Tensor) -> tuple[float, float]:
    """Returns the seconds until the work is queued, and until the device has done it."""
    begin = begin_together()
    reduce(tensor)
    queued = time.perf_counter() - begin
    torch.cuda.synchronize()
    return queued, time.perf_counter() - begin


def begin_together() -> float:
    """Waits until no rank has work on its device, and returns the time."""
    torch.cuda.synchronize()
    hvd.barrier()
    return time.perf_counter()


def model() -> torch.nn.Module:
    """Returns a model with 80 layers and 160 parameters."""
    return torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(80))).cuda()


class StepTimes(NamedTuple):
    """The times of a step, in microseconds."""

    backward: float  # until backward() returns
    queued: float  # until the step is queued
    whole: float  # until the device has done it


def timed_step(net: torch.nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor) -> StepTimes:
    begin = begin_together()
    loss = net(inputs).square().mean()
    forward = time.perf_counter()
    loss.backward()
    backward = time.perf_counter()
    optimizer.step()
    optimizer.zero_grad()
    queued = time.perf_counter()
    torch.cuda.synchronize()
    marks = (backward - forward, queued - begin, time.perf_counter() - begin)
    return StepTimes(*(seconds * 1e6 for seconds in marks))


def in_turns(nets: Sequence[torch.nn.Module], inputs: torch.Tensor, steps: int) -> tuple[Ways, dict[str, StepTimes]]:
    """Returns the ways to make a step, and their median times: by itself, through us, through torch's DDP over NCCL."""
    plain, wrapped, of_torch = (torch.optim.SGD(net.parameters(), lr=0.01) for net in nets)
    ours = hvd.DistributedOptimizer(wrapped, named_parameters=nets[1].named_parameters())
    ways = {
        ITSELF: (nets[0], plain),
        OURS: (nets[1], ours),
        TORCHS: (DistributedDataParallel(nets[2]), of_torch),
    }
    times: dict[str, list[StepTimes]] = {way: [] for way in ways}
    for _ in range(steps):
        for way, (net, optimizer) in ways.items():
            times[way].append(timed_step(net, optimizer, inputs))
    warm = {way: each[steps // 10 :] for way, each in times.items()}
    return ways, {way: StepTimes(*map(statistics.median, zip(*each, strict=True))) for way, each in warm.items()}


def print_times(what: str, rows: Mapping[str, StepTimes]) -> None:
    for way, row in rows.items():
        print(
            f"{what}, {way}: backward {row.backward:.0f} us, step until queued {row.queued:.0f} us, "
            f"whole {row.whole:.0f} us"
        )


def hooks() -> None:
    """Prints the times of a step of a model with many small parameters."""
    inputs = torch.ones(64, 256, device="cuda")
    _, rows = in_turns([model() for _ in range(3)], inputs, STEPS)
    if hvd.rank() == 0:
        print_times("160 parameters", rows)
        added, by_torch = (rows[way].backward - rows[ITSELF].backward for way in (OURS, TORCHS))
        part = max(added, 0.0) / max(by_torch, 1.0)
        print(f"hooks add {added:.0f} us of the host to backward, torch's DDP {by_torch:.0f}: {part:.2f} of its time")


class Transformer(torch.nn.Module):
    """Has 100 million parameters: 12 layers of the width 768, and 20,000 words."""

    def __init__(self) -> None:
        super().__init__()
        width, layers, words = sized((768, 12, 20_000), (32, 2, 100))
        self.words = words
        self.embedding = torch.nn.Embedding(words, width)
        layer = torch.nn.TransformerEncoderLayer(width, width // 64 or 1, 4 * width, dropout=0.0, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(self.embedding(words))
        return found


def transformer() -> None:
    """Prints the times of a step of a transformer, and how much of the communication overlaps with backward."""
    nets = [Transformer().cuda() for _ in range(3)]
    parameters = sum(parameter.numel() for parameter in nets[0].parameters())
    inputs = torch.arange(8 * 128, device="cuda").remainder(nets[0].words).view(8, 128)
    ways, rows = in_turns(nets, inputs, sized(STEPS // 2, 2))
    overlaps = {}
    with tempfile.TemporaryDirectory(prefix="perseus-traces-") as folder:
        for way in (OURS, TORCHS):
            net, optimizer = ways[way]
            nccl, compute = traced(functools.partial(timed_step, net, optimizer, inputs), Path(folder, "trace.json"))
            overlaps[way] = overlap(nccl, compute)
    if hvd.rank() == 0:
        print_times(f"{parameters / 1e6:.1f} M parameters", rows)
        print("overlap with backward, of what is possible:", {way: round(part, 2) for way, part in overlaps.items()})
        part = rows[OURS].queued / rows[TORCHS].queued
        print(f"transformer: ours takes {part:.2f} of the host's time of torch's DDP")
    step = {way: {**row._asdict(), "overlap": overlaps.get(way)} for way, row in rows.items()}
    keep({"parameters": parameters, "microseconds of a step": step})


PARTS: dict[str, Callable[[], None]] = {
    "packing": packing,
    "collectives": collectives,
    "hooks": hooks,
    "transformer": transformer,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=tuple(PARTS), help="measure this alone")
    parser.add_argument("--apart", action="store_true", help="ranks share a GPU: NCCL takes each for a host of its own")
    chosen = parser.parse_args()
    start(chosen.apart)
    join_torch_distributed("nccl")
    for name, part in PARTS.items():
        if chosen.only in (None, name):
            part()
    dist.destroy_process_group()
    hvd.shutdown()


if __name__ == "__main__":
    main()
