"""Trains in torch in an elastic job.

The arguments are the number of seconds that a backward pass takes, and the number of passes in a step. Commits are
after any pass.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

import perseus_like.torch as hvd

sys.path.insert(0, str(Path(__file__).parent))
import steps as task  # type: ignore[import-not-found]


@hvd.elastic.run
def train(state: Any, pause: float, passes: int) -> None:
    task.report("start", rank=hvd.rank(), size=hvd.size(), step=state.step)
    assert state.sampler.num_replicas == hvd.size()
    while state.last is None or state.step < state.last:
        state.model(torch.full((1, task.WEIGHTS), task.gradient(state.step))).sum().backward()
        if state.step % passes == passes - 1:
            state.optimizer.step()
            state.optimizer.zero_grad()
        task.end_step(hvd, state, pause)


def main(pause: float, passes: int = 2) -> None:
    hvd.init()
    model = torch.nn.Linear(task.WEIGHTS, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=task.LEARNING_RATE, momentum=task.MOMENTUM)
    distributed = hvd.DistributedOptimizer(optimizer, backward_passes_per_step=passes)
    sampler = hvd.elastic.ElasticSampler(range(60))
    state: Any = hvd.elastic.TorchState(model, distributed, sampler=sampler, step=0, last=None)
    train(state, pause, passes)
    weights = hvd.allgather_object(model.weight.flatten().tolist())
    task.report_end(hvd.rank(), hvd.size(), state.step, weights, passes)


if __name__ == "__main__":
    main(float(sys.argv[1]), *map(int, sys.argv[2:]))
