"""Walks through the library: the calls of its own Python functions for one small gradient, and for one all_reduce.

`release/house.py` runs this file on two ranks, and tests in worlds compare the calls with a budget.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist

import perseus_like.torch as hvd

PACKAGE = str(Path(hvd.__file__).parents[1]) + "/"

Calls = list[tuple[str, str]]


def fourth(run: Callable[[], object]) -> Calls:
    """Returns the file and the name of each function that the fourth `run()` calls in this thread."""
    for _ in range(3):
        run()
    calls: Calls = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<"):
            calls.append((code.co_filename.removeprefix(PACKAGE), code.co_name))

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


def gradient() -> Calls:
    """Returns the calls of one step with one layer of 8 × 8."""
    model = torch.nn.Linear(8, 8, bias=False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    data = torch.ones(4, 8)

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(model(data).sum())
        optimizer.step()

    return fourth(step)


def all_reduce() -> Calls:
    """Returns the calls of one `dist.all_reduce`."""
    tensor = torch.ones(4)
    return fourth(lambda: dist.all_reduce(tensor))


def described(calls: Calls) -> str:
    """Returns the calls as a list, one a line, for the message of a test that fails."""
    return "\n".join(f"{number:4} {file} {name}" for number, (file, name) in enumerate(calls, 1))


def main() -> None:
    """Writes the calls of rank 0 into a file: `walks.py gradient calls.json`."""
    walk, file = sys.argv[1:]
    if walk == "gradient":
        hvd.init()
        calls, rank = gradient(), hvd.rank()
    else:
        dist.init_process_group("perseus")
        calls, rank = all_reduce(), dist.get_rank()
        dist.destroy_process_group()
    if rank == 0:
        Path(file).write_text(json.dumps(calls))


if __name__ == "__main__":
    main()
