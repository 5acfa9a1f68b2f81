"""Runs all_reduce in every way that the process group in C++ looks after, and writes the results of this rank.

    native_group_program.py on|off on|off …

Each rank has a mode, in the order of the ranks. `on` states that the group in C++ is used here. Its module is found
through TORCH_EXTENSIONS_DIR.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

if sys.argv[1 + int(os.environ["PERSEUS_RANK"])] == "off":
    os.environ["TORCH_EXTENSIONS_DIR"] = "/nonexistent"

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from perseus_like.torch.native_group import native

RANK = int(os.environ["PERSEUS_RANK"])
MODE = sys.argv[1 + RANK]
DTYPES = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32]
DTYPES += [torch.float64, torch.bool, torch.complex64, torch.uint16]
OPS = ["SUM", "AVG", "MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR"]
ALL_REDUCE: Any = torch.ops._c10d_functional.all_reduce_.default
WAIT: Any = torch.ops._c10d_functional.wait_tensor.default
written: list[str] = []


def write(*words: object) -> None:
    written.append(" ".join(map(str, words)))


def error_of(call: Callable[[], Any]) -> str:
    """Returns class and text of the error, without the lines of Python that a future adds: the thread varies."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).split('At:')[0].strip()}"
    return "no error"


def compiled(tensor: torch.Tensor, op: str = "sum") -> torch.Tensor:
    """Reduces as compiled code does."""
    found: torch.Tensor = WAIT(ALL_REDUCE(tensor, op, dist.group.WORLD.group_name))  # type: ignore[union-attr]
    return found


def reduced(dtype: torch.dtype, op: str) -> str:
    values = (torch.arange(24).view(2, 3, 4) + dist.get_rank()) % 7
    first, second, third = (values.to(dtype) for _ in range(3))

    def call() -> None:
        dist.all_reduce(first, op=getattr(dist.ReduceOp, op))
        work = dist.all_reduce(second, op=getattr(dist.ReduceOp, op), async_op=True)
        assert work is not None
        work.wait()
        compiled(third, op.lower())

    error = error_of(call)
    return error if error != "no error" else f"{first.tolist()} {second.tolist()} {third.tolist()}"


def values_and_layouts() -> None:
    rank = dist.get_rank()
    for dtype in DTYPES:
        for op in OPS:
            write(dtype, op, reduced(dtype, op))
    for tensor in (torch.ones(0), torch.ones(()), torch.ones(4, 6).t(), torch.ones(1 << 19), torch.ones(3).neg()):
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        work.wait()
        write(tuple(tensor.shape), tensor.sum().item())
    premultiplied = torch.full((4,), float(rank))
    dist.all_reduce(premultiplied, op=dist._make_nccl_premul_sum(0.5))  # type: ignore[attr-defined]
    write(premultiplied.tolist())


def works() -> None:
    work: Any = dist.all_reduce(torch.ones(2), async_op=True)
    work.wait(timedelta(seconds=20))
    write(work.is_completed(), work.is_success(), work.exception(), work.result(), work.get_future().value())
    asked: Any = dist.all_reduce(torch.ones(2), async_op=True)
    while not asked.is_completed():
        time.sleep(0.001)
    number = asked._get_sequence_number()
    group: Any = dist.group.WORLD
    write("number", number, group._get_sequence_number_for_group(), asked.source_rank(), asked.wait())
    dropped = torch.ones(5)
    dist.all_reduce(dropped, async_op=True)
    dist.barrier()
    write("dropped", dropped.tolist())


def callbacks() -> None:
    """Collectives within callbacks have numbers of their own, on whichever thread and rank they run first."""
    inner = torch.ones(3)

    def then(_: Any) -> torch.Tensor:
        compiled(inner)
        dist.all_reduce(inner)
        return inner

    work: Any = dist.all_reduce(torch.ones(2), async_op=True)
    future = work.get_future().then(then)
    other = torch.ones(2)
    dist.all_reduce(other)
    write("callback", future.wait().tolist(), other.tolist())


def numbers() -> None:
    """Calls that Python executes, calls in C++ and those of a coalescing manager share one sequence of numbers."""
    group: Any = dist.group.WORLD
    before = group._get_sequence_number_for_group()
    dist.broadcast(torch.ones(2), 0)
    compiled(torch.ones(2))
    tensors = [torch.ones(2), torch.ones(3)]
    with dist._coalescing_manager(group):  # type: ignore[attr-defined]
        for tensor in tensors:
            dist.all_reduce(tensor)
    write("numbers", group._get_sequence_number_for_group() - before, [each.tolist() for each in tensors])


def threads() -> None:
    """Two threads use groups of their own at the same time."""
    groups: list[Any] = [dist.new_group() for _ in range(2)]
    sums = [torch.zeros(64) for _ in groups]

    def work(index: int) -> None:
        for step in range(50):
            sums[index].fill_(step)
            dist.all_reduce(sums[index], group=groups[index])

    running = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    write("threads", [each.sum().item() for each in sums])
    dist.destroy_process_group(groups[0])
    write("left", error_of(lambda: groups[0].allreduce([torch.ones(1)], dist.AllreduceOptions()).wait()))


def errors() -> None:
    rank = dist.get_rank()
    for call in (dist.all_reduce, compiled):
        write(error_of(lambda call=call: call(torch.ones(3 + rank))))  # type: ignore[misc]
        write(error_of(lambda call=call: call(torch.ones(3, dtype=torch.float32 if rank == 0 else torch.int64))))  # type: ignore[misc]
    work: Any = dist.all_reduce(torch.ones(3 + rank), async_op=True)
    write(error_of(work.wait), error_of(work.wait), work.is_completed(), work.is_success(), repr(work.exception()))
    failed: Any = dist.all_reduce(torch.ones(3 + rank), async_op=True)
    write("future", error_of(failed.get_future().wait))
    for other in (lambda: dist.broadcast(torch.ones(3), 0), lambda: dist.barrier()):
        write(error_of((lambda: dist.all_reduce(torch.ones(3))) if rank == 0 else other))
    write(error_of(lambda: dist.all_reduce(torch.ones(3), op=dist.ReduceOp.BAND)))
    compiled_sum = torch.ones(3)
    write("afterwards", compiled(compiled_sum).tolist())


def late_ranks() -> None:
    """A wait ends in time. Work that nobody waits for is executed, too."""
    timed_out = Path(f"timed-out-{os.getppid()}")  # the launcher's number: another job has another file
    if dist.get_rank() == 0:
        work: Any = dist.all_reduce(torch.ones(2), async_op=True)
        write(error_of(lambda: work.wait(timedelta(seconds=0.5))))
        timed_out.touch()
        work.wait()
    else:
        while not timed_out.exists():
            time.sleep(0.01)
        dist.all_reduce(torch.ones(2))
    for pause in (0.0, 0.0, 0.03, 0.0):  # the engine's thread sleeps again after some milliseconds
        time.sleep(pause)
        tensor = torch.ones(4)
        pending = ALL_REDUCE(tensor, "sum", dist.group.WORLD.group_name)  # type: ignore[union-attr]
        deadline = time.monotonic() + 240
        while tensor[0] != dist.get_world_size() and time.monotonic() < deadline:
            time.sleep(0.001)
        write("nobody waits", tensor.tolist(), WAIT(pending).tolist())


def compiled_program() -> None:
    """torch.compile's code, without its C++ compiler."""

    group: Any = dist.group.WORLD

    def step(tensor: torch.Tensor) -> Any:
        return functional.all_reduce(tensor * 2, "sum", group) + 1

    run = torch.compile(step, backend="aot_eager", fullgraph=True)
    write("compile", *(run(torch.full((8,), float(turn))).tolist() for turn in range(3)))


def main() -> None:
    dist.init_process_group("perseus", timeout=timedelta(seconds=60))
    group: Any = dist.group.WORLD
    assert (native is not None) == (MODE == "on")
    work: Any = group.allreduce([torch.ones(1)], dist.AllreduceOptions())
    assert (native is not None and isinstance(work, native.NativeWork)) == (MODE == "on")
    work.wait()
    for part in (values_and_layouts, works, callbacks, numbers, threads, errors, late_ranks, compiled_program):
        part()
    dist.destroy_process_group()
    Path(f"rank{RANK}").write_text("\n".join(written))


if __name__ == "__main__":
    main()
