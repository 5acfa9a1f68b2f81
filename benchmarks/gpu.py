"""Checks and measures this library on GPUs. benchmarks.fifteen_minutes runs the parts in order; see gpu.md.

    perseusrun -np 1 python -m benchmarks.gpu --only packing
    perseusrun -np 2 python -m benchmarks.gpu --only hooks              # two GPUs
    perseusrun -np 2 python -m benchmarks.gpu --only hooks --apart      # or one GPU
    perseusrun -np 1 compute-sanitizer --tool memcheck python -m benchmarks.gpu --only kernels

Packing is compared with a copy of the same bytes within the device, as torch's profiler times the kernels. A call may
need several launches, whose times are added. NCCL refuses two of its ranks on one GPU, unless they seem to be on two
hosts. `PERSEUS_BENCHMARK_STAND_IN` names a file of Python that is executed first: a stand-in for CUDA.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import os
import runpy
import signal
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.nn.parallel import DistributedDataParallel

import perseus_like.torch as hvd

from . import RESULT, SMALL, write_whole
from .harness import WIDTH, resnet_shapes

if _stand_in := os.environ.get("PERSEUS_BENCHMARK_STAND_IN"):
    runpy.run_path(_stand_in)

Size = TypeVar("Size")
ITSELF, OURS, TORCHS = "by itself", "ours", "torch's DDP"
Ways = dict[str, tuple[torch.nn.Module, Any]]


def sized(usual: Size, small: Size) -> Size:
    """Returns the size of the work. The small one is for seeing if a program runs."""
    return small if SMALL in os.environ else usual


STEPS = sized(50, 6)


def say(text: str) -> None:
    if hvd.rank() == 0:
        print(text, flush=True)


def require(holds: bool, text: str) -> None:
    if not holds:
        raise SystemExit(f"rank {hvd.rank()}: {text}")


# --- ranks and GPUs --------------------------------------------------------------------------------------------------


def sharing(identities: Sequence[str]) -> list[list[int]]:
    """Returns the lists of ranks that have the same GPU; `identities` is by rank."""
    ranks: dict[str, list[int]] = {}
    for rank, identity in enumerate(identities):
        ranks.setdefault(identity, []).append(rank)
    return [listed for listed in ranks.values() if len(listed) > 1]


def identity_of(device: int) -> str:
    """Returns a text that no other GPU has: the UUID, or the host and the PCI address with an older torch."""
    properties = torch.cuda.get_device_properties(device)
    uuid = getattr(properties, "uuid", None)
    places = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    return str(uuid) if uuid is not None else f"{socket.gethostname()} {places if None not in places else device}"


def seem_apart(rank: int) -> None:
    """Makes NCCL take each rank for a host of its own, which it connects by sockets. Call it before NCCL starts."""
    os.environ["NCCL_HOSTID"] = f"rank {rank}"
    os.environ["NCCL_NET"] = "Socket"


def start(apart: bool) -> None:
    """Starts the session, and chooses this rank's GPU. Ends the program if ranks share a GPU and are not `apart`."""
    hvd.init()
    torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    found = sharing(hvd.allgather_object(identity_of(torch.cuda.current_device())))
    if found and apart:
        seem_apart(hvd.rank())
    elif found and "NCCL_HOSTID" not in os.environ and os.environ.get("PERSEUS_NCCL_LIBRARY") != "none":
        listed = " and ".join(map(str, found[0]))
        raise SystemExit(
            f"ranks {listed} have the same GPU, which NCCL refuses ('Duplicate GPU'): give each rank its own, pass "
            "--apart (NCCL then connects them by sockets), or set PERSEUS_NCCL_LIBRARY=none to go through host memory"
        )
    shared = f"; ranks that share a GPU: {found}" if found else ""
    say(f"{torch.cuda.get_device_name()}, {hvd.size()} ranks{shared}")


def join_torch_distributed() -> None:
    """Makes torch's default process group over NCCL, of the same ranks, which are on one host."""

    def store_at(port: int) -> TCPStore:
        limit = timedelta(seconds=60)
        return TCPStore("127.0.0.1", port, hvd.size(), hvd.rank() == 0, limit, wait_for_workers=False)

    first = store_at(0) if hvd.rank() == 0 else None
    port = hvd.broadcast_object(first.port if first else None, root_rank=0)
    dist.init_process_group("nccl", store=first or store_at(port), rank=hvd.rank(), world_size=hvd.size())


# --- checks ----------------------------------------------------------------------------------------------------------


def control() -> None:
    """Runs torch's own NCCL in the arrangement of the other parts: two ranks, on one GPU if there is one only.

    If this fails, NCCL does not work in this arrangement, and failures of other parts say nothing about this library.
    """
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
    torch.cuda.synchronize()
    nccl: Any = torch.cuda.nccl
    print(f"rank {rank}: torch's own NCCL {nccl.version()} works here", flush=True)


INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WIRES = {"none": None, "fp16": torch.float16, "bf16": torch.bfloat16}
COUNTS = (1, 5, 33, 40_001)


def pack_all(offset: int) -> int:
    """Packs tensors whose memory begins `offset` elements after an aligned address. Returns the number of kinds."""
    kinds: list[tuple[torch.dtype, str]] = [(dtype, "none") for dtype in (*INTEGERS, *FLOATS)]
    kinds += [(dtype, wire) for dtype in (torch.float32, torch.float64) for wire in ("fp16", "bf16")]
    for dtype, wire in kinds:
        bases = [torch.arange(offset + count, device="cuda").remainder(11).to(dtype) for count in COUNTS]
        tensors, factor = [base[offset:] for base in bases], 0.5 if dtype.is_floating_point else 2.0
        options: dict[str, Any] = {"op": hvd.Sum, "prescale_factor": factor, "name": f"{dtype} {wire}"}
        results = hvd.grouped_allreduce(tensors, compression=getattr(hvd.Compression, wire), **options)
        for result, tensor in zip(results, tensors, strict=True):
            wanted = (tensor.cpu() * hvd.size() * factor).to(WIRES[wire] or dtype)
            right = torch.allclose(result.cpu().double(), wanted.double(), rtol=1e-3, atol=1e-3)
            require(right, f"{dtype} over {wire} at offset {offset}: {result[:8]} in place of {wanted[:8]}")
    return len(kinds)


def kernels(large: bool = True) -> None:
    """Packs all pairs of types at offsets from 0 to 15, and one tensor beyond 2**31 elements beside a small one.

    There is no profiler in it, which the sanitizer does not get on with. Results are compared with torch's own on the
    host.
    """
    combinations = sum(pack_all(offset) for offset in range(sized(16, 1)))
    if large:
        count = sized(2**31 + 17, 1017)
        most, small = torch.ones(count, dtype=torch.uint8, device="cuda"), torch.full((5,), 7, dtype=torch.uint8)
        most[-17:] = 3
        results = hvd.grouped_allreduce([small.cuda(), most], op=hvd.Sum, name="large")
        totals = int(results[1][-17:].sum()), int(results[1][:1000].sum()), results[0].tolist()
        expected = (51 * hvd.size(), 1000 * hvd.size(), [7 * hvd.size()] * 5)
        require(totals == expected, f"a tensor of {count} elements: {totals}")
    torch.cuda.synchronize()
    print(f"{combinations} combinations of types and offsets are right", flush=True)


def trained(net: torch.nn.Module, model: Any, optimizer: Any, inputs: torch.Tensor) -> torch.Tensor:
    """Trains for some steps. Returns all weights of `net` as one tensor; `model` may be a wrapper around it."""
    for _ in range(5):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])


def through_optimizer(net: torch.nn.Module, model: Any, inputs: torch.Tensor) -> torch.Tensor:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return trained(net, model, hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters()), inputs)


def through_backend(net: torch.nn.Module, model: Any, inputs: torch.Tensor) -> torch.Tensor:
    return trained(net, DistributedDataParallel(model), torch.optim.SGD(net.parameters(), lr=0.1), inputs)


def graphs() -> None:
    """Trains a model eagerly, and with its passes in CUDA graphs. The weights must be the same."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4))).cuda()
    inputs = torch.randn(64, 256, device="cuda") * (hvd.rank() + 1)
    eager = copy.deepcopy(net)
    expected = through_optimizer(eager, eager, inputs)
    for train in (through_optimizer, through_backend):
        mine = copy.deepcopy(net)
        found = train(mine, torch.cuda.make_graphed_callables(mine, (inputs,)), inputs)
        torch.cuda.synchronize()
        right = torch.allclose(found, expected, rtol=1e-3, atol=1e-5)
        require(right, f"{train.__name__}: the weights differ from eager ones")
    say("GRAPHS are right")


def lost_rank() -> None:
    """Kills a rank with four buckets in flight, and measures the time until the other rank gets its error."""
    buckets = [torch.ones(sized(16 << 20, 1000), device="cuda") for _ in range(4)]
    begin = 0.0
    try:
        for step in range(10**6):
            begin = time.perf_counter()
            handles = [hvd.allreduce_async_(bucket, name=str(number)) for number, bucket in enumerate(buckets)]
            if step == 20 and hvd.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            for handle in handles:
                hvd.synchronize(handle)
            torch.cuda.synchronize()
    except hvd.HorovodInternalError as error:
        print(f"ERROR after {time.perf_counter() - begin:.2f} s: {error}", flush=True)
        raise SystemExit(1) from error


# --- the host's time, and the device's -------------------------------------------------------------------------------


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
    copied = kernel_microseconds(lambda: target.copy_(source), "memcpy")
    for kernel in ("perseus_pack", "perseus_unpack"):
        took = kernel_microseconds(lambda: hvd.grouped_allreduce(tensors, op=hvd.Sum, name="group"), kernel)
        if took:
            part = f"{copied / took:.0%} of a copy's bandwidth"
            print(f"{kernel}: {took:.0f} us for {len(tensors)} tensors, {part}")


def begin_together() -> float:
    """Waits until no rank has work on its device, and returns the time."""
    torch.cuda.synchronize()
    hvd.barrier()
    return time.perf_counter()


def timed_call(reduce: Callable[[Any], object], tensor: Any) -> tuple[float, float]:
    """Returns the seconds until the work is queued, and until the device has done it."""
    begin = begin_together()
    reduce(tensor)
    queued = time.perf_counter() - begin
    torch.cuda.synchronize()
    return queued, time.perf_counter() - begin


def collectives() -> None:
    """Prints the host's time until a small and a large allreduce are queued, and until their results are there."""
    ways: dict[str, Callable[[torch.Tensor], object]] = {
        "allreduce": lambda tensor: hvd.allreduce_(tensor, op=hvd.Max, name=f"{tensor.numel()} floats"),
        "torch's own NCCL": lambda tensor: dist.all_reduce(tensor, op=dist.ReduceOp.MAX),
    }
    for elements, text in ((1, "1 float"), (sized(16 << 20, 1000), "64 MiB")):
        tensor = torch.ones(elements, device="cuda")
        queued = []
        for way, reduce in ways.items():
            times = [timed_call(reduce, tensor) for _ in range(STEPS)][5:]
            until, whole = (statistics.median(column) * 1e6 for column in zip(*times, strict=True))
            queued.append(until)
            say(f"{way} of {text}, until queued: {until:.0f} us, until there: {whole:.0f} us")
        say(f"ours of {text} is queued in {queued[0] / queued[1]:.2f} of torch's time")


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


def in_turns(
    what: str, make: Callable[[], torch.nn.Module], inputs: torch.Tensor, steps: int
) -> tuple[Ways, dict[str, StepTimes]]:
    """Returns the ways to make a step, and their median times: by itself, through us, through torch's DDP over NCCL."""
    nets = [make().cuda() for _ in range(3)]
    plain, wrapped, of_torch = (torch.optim.SGD(net.parameters(), lr=0.01) for net in nets)
    ours = hvd.DistributedOptimizer(wrapped, named_parameters=nets[1].named_parameters())
    ddp = DistributedDataParallel(nets[2], gradient_as_bucket_view=True)
    ways: Ways = {ITSELF: (nets[0], plain), OURS: (nets[1], ours), TORCHS: (ddp, of_torch)}
    times: dict[str, list[StepTimes]] = {way: [] for way in ways}
    for _ in range(steps):
        for way, (net, optimizer) in ways.items():
            times[way].append(timed_step(net, optimizer, inputs))
    warm = {way: each[steps // 10 :] for way, each in times.items()}
    rows = {way: StepTimes(*map(statistics.median, zip(*each, strict=True))) for way, each in warm.items()}
    for way, row in rows.items():
        host = f"backward {row.backward:.0f} us, step until queued {row.queued:.0f} us"
        say(f"{what}, {way}: {host}, whole {row.whole:.0f} us")
    return ways, rows


def hooks() -> None:
    """Prints the times of a step of a model with 80 layers and 160 parameters."""

    def layers() -> torch.nn.Module:
        return torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(80)))

    _, rows = in_turns("160 parameters", layers, torch.ones(64, 256, device="cuda"), STEPS)
    added, by_torch = (rows[way].backward - rows[ITSELF].backward for way in (OURS, TORCHS))
    part = max(added, 0.0) / max(by_torch, 1.0)
    say(f"hooks add {added:.0f} us of the host to backward, torch's DDP {by_torch:.0f}: {part:.2f} of its time")


# --- overlap ---------------------------------------------------------------------------------------------------------

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
    return both / max(min(sum(end - begin for begin, end in spans) for spans in (ours, later)), 1e-9)


def kernels_of(trace: dict[str, Any]) -> tuple[list[Span], list[Span]]:
    """Returns the spans of NCCL's kernels and those of torch's, from a trace of torch's profiler."""
    nccl: list[Span] = []
    compute: list[Span] = []
    for event in trace["traceEvents"]:
        name = str(event.get("name")).lower()
        if event.get("cat") == "kernel" and "perseus" not in name:
            span = (float(event["ts"]), float(event["ts"]) + float(event["dur"]))
            (nccl if "nccl" in name else compute).append(span)
    return nccl, compute


def traced(step: Callable[[], object]) -> tuple[list[Span], list[Span]]:
    """Traces one step, and returns the spans of its kernels as `kernels_of` does."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    with torch.profiler.profile() as profile:
        step()
        torch.cuda.synchronize()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profile.export_chrome_trace(file.name)
        return kernels_of(json.loads(Path(file.name).read_text()))


def ddp_overlap() -> None:
    """Prints how much of the possible overlap of NCCL and backward a step of torch's DDP over `perseus` has."""
    width = sized(4096, 64)
    layers = [torch.nn.Linear(width, width) for _ in range(8)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers).cuda(), gradient_as_bucket_view=True)
    inputs = torch.ones(width, width, device="cuda")

    def step() -> None:
        model.zero_grad()
        model(inputs).square().mean().backward()

    nccl, compute = traced(step)
    say(f"OVERLAP {overlap(nccl, compute):.2f} of what {len(nccl)} kernels of NCCL allow")


class Transformer(torch.nn.Module):
    """Has 100 million parameters: 12 layers of the width 768, and 20,000 words."""

    def __init__(self) -> None:
        super().__init__()
        width, layers, words = sized((768, 12, 20_000), (32, 2, 100))
        self.embedding = torch.nn.Embedding(words, width)
        layer = torch.nn.TransformerEncoderLayer(width, width // 64 or 1, 4 * width, dropout=0.0, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(self.embedding(words))
        return found


def transformer() -> None:
    """Prints the times of a step of a transformer, and how much of the communication overlaps with backward."""
    parameters = sum(parameter.numel() for parameter in Transformer().parameters())
    inputs = torch.arange(8 * 128, device="cuda").remainder(sized(20_000, 100)).view(8, 128)
    ways, rows = in_turns(f"{parameters / 1e6:.1f} M parameters", Transformer, inputs, sized(STEPS // 2, 2))
    overlaps = {way: overlap(*traced(functools.partial(timed_step, *ways[way], inputs))) for way in (OURS, TORCHS)}
    say(f"overlap with backward, of what is possible: { {way: round(part, 2) for way, part in overlaps.items()} }")
    say(f"transformer: ours takes {rows[OURS].queued / rows[TORCHS].queued:.2f} of the host's time of torch's DDP")
    step = {way: {**row._asdict(), "overlap": overlaps.get(way)} for way, row in rows.items()}
    if hvd.rank() == 0 and RESULT in os.environ:
        write_whole(Path(os.environ[RESULT]), json.dumps({"parameters": parameters, "microseconds of a step": step}))


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> torch.nn.Sequential:
    layer = torch.nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return torch.nn.Sequential(layer, torch.nn.BatchNorm2d(outputs))


class Bottleneck(torch.nn.Module):
    def __init__(self, inputs: int, narrow: int, stride: int) -> None:
        super().__init__()
        wide, relu = 4 * narrow, torch.nn.ReLU(inplace=True)
        first, middle = convolution(inputs, narrow, 1), convolution(narrow, narrow, 3, stride)
        self.main = torch.nn.Sequential(first, relu, middle, relu, convolution(narrow, wide, 1))
        same = stride == 1 and inputs == wide
        self.beside = torch.nn.Identity() if same else convolution(inputs, wide, 1, stride)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.main(images) + self.beside(images))


def resnet50_model() -> torch.nn.Module:
    """ResNet-50 of He et al., 2016, arXiv:1512.03385. It has 161 parameters with 25,557,032 elements."""
    width = sized(64, 8)
    layers: list[torch.nn.Module] = [
        convolution(3, width, 7, 2),
        torch.nn.ReLU(inplace=True),
        torch.nn.MaxPool2d(3, 2, 1),
    ]
    inputs = width
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width << stage, 2 if stage > 0 and block == 0 else 1))
            inputs = 4 * width << stage
    ends = (torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(inputs, 1000))
    return torch.nn.Sequential(*layers, *ends).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def resnet50() -> None:
    """Prints the times of a step of ResNet-50, and how much of the communication backward hides."""
    side = sized(224, 64)
    images = torch.randn(sized(64, 2), 3, side, side, device="cuda").to(memory_format=torch.channels_last)
    ways, rows = in_turns("ResNet-50", resnet50_model, images, STEPS)
    say(f"ours in torch's time: {rows[OURS].whole / rows[TORCHS].whole:.3f}")
    gradients = [torch.zeros_like(parameter) for parameter in ways[ITSELF][0].parameters()]
    reduce = functools.partial(hvd.grouped_allreduce_, op=hvd.Average, name="all gradients")
    alone = statistics.median(timed_call(reduce, gradients)[1] for _ in range(STEPS)) * 1e6
    hidden = min(1.0, max(0.0, 1 - (rows[OURS].whole - rows[ITSELF].whole) / alone))
    say(f"communication alone takes us {alone:.0f} us; backward hides {hidden:.0%} of it")


# --- all parts -------------------------------------------------------------------------------------------------------

# Each part, and torch's process group in it: none, one over torch's own NCCL, or one over this library.
PARTS: dict[str, tuple[Callable[[], None], str]] = {
    "control": (control, ""),
    "kernels": (kernels, ""),
    "kernels_but_large": (functools.partial(kernels, large=False), ""),
    "packing": (packing, "nccl"),
    "collectives": (collectives, "nccl"),
    "hooks": (hooks, "nccl"),
    "overlap": (ddp_overlap, "perseus"),
    "graphs": (graphs, "perseus"),
    "transformer": (transformer, "nccl"),
    "resnet50": (resnet50, "nccl"),
    "lost_rank": (lost_rank, ""),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=tuple(PARTS), required=True, help="the part")
    parser.add_argument("--apart", action="store_true", help="ranks that share a GPU seem to be on hosts of their own")
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU here")
    part, group = PARTS[chosen.only]
    if part is not control:
        start(chosen.apart)
    if group == "nccl":
        join_torch_distributed()
    elif group:
        dist.init_process_group(group)
    part()
    if dist.is_initialized():
        dist.destroy_process_group()
    if part is not control:
        hvd.shutdown()


if __name__ == "__main__":
    main()
