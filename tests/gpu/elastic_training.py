"""Trains on a GPU in an elastic job of two ranks. Rank 1 kills itself, and rank 0 goes on alone."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch

import perseus_like.torch as hvd

STEPS = 20
LOST_AT = 5


@hvd.elastic.run
def train(state: Any) -> None:
    while state.step < STEPS:
        if hvd.size() == 2 and hvd.rank() == 1 and state.step == LOST_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        state.optimizer.zero_grad()
        state.model(torch.ones(1, 1000, device="cuda")).sum().backward()
        state.optimizer.step()
        state.step += 1
        state.commit()


def main() -> None:
    hvd.init()
    torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    # NCCL refuses two ranks on one GPU unless they seem to be on two hosts.
    os.environ["NCCL_HOSTID"] = f"rank {hvd.rank()}"
    model = torch.nn.Linear(1000, 1, bias=False).cuda()
    torch.nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    state: Any = hvd.elastic.TorchState(model, hvd.DistributedOptimizer(optimizer), step=0)
    train(state)
    low, high = model.weight.min().item(), model.weight.max().item()
    print(f"END of rank {hvd.rank()} of {hvd.size()}, step {state.step}, weights {low:.4f} to {high:.4f}", flush=True)


if __name__ == "__main__":
    main()
