"""Checks of what had never run on a GPU: CUDA graphs, bfloat16 and 8-bit floats, and many allocations.

perseusrun -np 2 python -m benchmarks.first_hour.checks graphs floats
"""

from __future__ import annotations

import copy
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import perseus_like.torch as hvd

from .ranks import keep, sized, start

STEPS = 5
MIB = 1 << 20
BYTE_FLOATS = (torch.float8_e4m3fn, torch.float8_e5m2)


def require(holds: bool, text: str) -> None:
    if not holds:
        raise SystemExit(f"rank {hvd.rank()}: {text}")


# --- CUDA graphs -----------------------------------------------------------------------------------------------------


def trained(net: torch.nn.Module, model: Any, optimizer: Any, inputs: torch.Tensor) -> torch.Tensor:
    """Trains for some steps. Returns all weights of `net` as one tensor; `model` may be a wrapper around it."""
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])


def graphed(net: torch.nn.Module, inputs: torch.Tensor) -> Any:
    """Returns a model whose forward and backward passes are CUDA graphs."""
    return torch.cuda.make_graphed_callables(net, (inputs,))


def through_optimizer(net: torch.nn.Module, model: Any, inputs: torch.Tensor) -> torch.Tensor:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return trained(net, model, hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters()), inputs)


def through_backend(net: torch.nn.Module, model: Any, inputs: torch.Tensor) -> torch.Tensor:
    return trained(net, DistributedDataParallel(model), torch.optim.SGD(net.parameters(), lr=0.1), inputs)


def refusal(verb: Callable[[torch.Tensor], object]) -> str:
    """Returns the error of a verb on a stream that is being captured into a graph."""
    tensor, graph, said = torch.ones(8, device="cuda"), torch.cuda.CUDAGraph(), ""
    with torch.cuda.graph(graph):
        tensor.add_(1)
        try:
            verb(tensor)
        except ValueError as error:
            said = str(error)
    return said


def graphs() -> None:
    """Trains a model eagerly and in CUDA graphs. The weights must be the same."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4))).cuda()
    inputs = torch.randn(64, 256, device="cuda") * (hvd.rank() + 1)
    eager = copy.deepcopy(net)
    expected = through_optimizer(eager, eager, inputs)
    ways: dict[str, Callable[..., torch.Tensor]] = {"optimizer": through_optimizer, "backend": through_backend}
    for way, train in ways.items():
        mine = copy.deepcopy(net)
        begin = time.perf_counter()
        found = train(mine, graphed(mine, inputs), inputs)
        torch.cuda.synchronize()
        require(torch.allclose(found, expected, rtol=1e-3, atol=1e-5), f"{way}: the weights differ from eager ones")
        print(f"rank {hvd.rank()}: {way} with a captured model: {time.perf_counter() - begin:.2f} s", flush=True)
    verbs: dict[str, Callable[[torch.Tensor], object]] = {
        "hvd.allreduce_": lambda tensor: hvd.allreduce_(tensor, name="captured"),
        "dist.all_reduce": lambda tensor: dist.all_reduce(tensor),
    }
    for name, verb in verbs.items():
        require("captured" in refusal(verb), f"{name} in a graph is not refused")
    after = hvd.allreduce(torch.ones(3, device="cuda"), op=hvd.Sum, name="after")
    require(after.tolist() == [hvd.size()] * 3, "a verb after a refused one is wrong")


# --- dtypes ----------------------------------------------------------------------------------------------------------


def floats() -> None:
    """Runs the verbs on bfloat16 and on 8-bit floats, with values that are exact in both."""
    rank, size = hvd.rank(), hvd.size()
    times: dict[str, float] = {}
    for dtype in (torch.bfloat16, *BYTE_FLOATS):
        name = str(dtype).removeprefix("torch.")
        for count in (1, 7, 40_001):
            mine = torch.full((count,), rank + 1.0, device="cuda").to(dtype)
            total = mine.clone()
            dist.all_reduce(total)
            same(total, size * (size + 1) / 2, f"all_reduce of {count} {name}")
            parts = torch.empty(size * count, device="cuda").to(dtype)
            dist.all_gather_into_tensor(parts, mine)
            same(parts[-count:], size, f"all_gather of {count} {name}")
            dist.broadcast(mine, size - 1)
            same(mine, size, f"broadcast of {count} {name}")
        times[name] = milliseconds(torch.zeros(sized(64 * MIB, 1000), device="cuda").to(dtype))
    for op, value in ((hvd.Sum, size * (size + 1) / 2), (hvd.Average, (size + 1) / 2), (hvd.Max, size)):
        found = hvd.allreduce(torch.full((9,), rank + 1.0, device="cuda").to(torch.bfloat16), op=op, name=f"op {op}")
        same(found, value, f"hvd.allreduce of bfloat16 with {op}")
    gathered = hvd.allgather(torch.full((rank + 1, 2), rank + 1.0, device="cuda").to(torch.bfloat16))
    same(gathered[-size:], size, "hvd.allgather of bfloat16")
    if rank == 0:
        for name, took in times.items():
            print(f"all_reduce of {sized(64 * MIB, 1000)} elements of {name}: {took:.2f} ms", flush=True)
    keep({"all_reduce of 64 Mi elements, ms": times})


def same(tensor: torch.Tensor, value: float, what: str) -> None:
    require(bool((tensor.float() == value).all()), f"{what}: {tensor.float()[:4].tolist()} in place of {value}")


def milliseconds(tensor: torch.Tensor) -> float:
    """Returns the median time of an all_reduce."""
    times = []
    for _ in range(sized(10, 2)):
        torch.cuda.synchronize()
        hvd.barrier()
        begin = time.perf_counter()
        dist.all_reduce(tensor)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return sorted(times)[len(times) // 2] * 1e3


# --- allocations -----------------------------------------------------------------------------------------------------


def allocations() -> None:
    """Allocates, reduces and frees tensors of many sizes, and now and then the buckets of an optimizer."""
    choose, size = random.Random(17), hvd.size()
    running: list[tuple[int, int]] = []
    count = sized(500, 60)
    for number in range(count):
        elements = int(2 ** choose.uniform(1, sized(24, 12)))
        tensor = torch.full((elements,), float(hvd.rank() + number), device="cuda")
        running.append((number, hvd.allreduce_async(tensor, op=hvd.Sum, name=f"allocation {number}")))
        del tensor  # it is freed while the work is in flight
        if len(running) == 4 or number == count - 1:
            while running:
                index, handle = running.pop(choose.randrange(len(running)))
                same(hvd.synchronize(handle), size * index + size * (size - 1) / 2, f"allocation {index}")
        if number % 20 == 19:
            net = torch.nn.Linear(elements % 500 + 1, 64).cuda()
            through_optimizer(net, net, torch.ones(4, elements % 500 + 1, device="cuda"))
            del net
            torch.cuda.empty_cache()
    torch.cuda.synchronize()
    if hvd.rank() == 0:
        print(f"{count} allocations, at most {torch.cuda.max_memory_reserved() / MIB:.0f} MiB reserved", flush=True)


CHECKS = {"graphs": graphs, "floats": floats, "allocations": allocations}


def main() -> None:
    start(apart=torch.cuda.device_count() < 2)
    dist.init_process_group("perseus")
    for name in sys.argv[1:] or CHECKS:
        CHECKS[name]()
        if hvd.rank() == 0:
            print(f"{name.upper()} are right", flush=True)
    dist.destroy_process_group()
    hvd.shutdown()


if __name__ == "__main__":
    main()
