"""Trains in torch in an elastic job. The argument is the number of seconds that a step takes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

import perseus_like.torch as hvd

sys.path.insert(0, str(Path(__file__).parent))
import steps as task  # type: ignore[import-not-found]


@hvd.elastic.run
def train(state: Any, pause: float) -> None:
    task.report("start", rank=hvd.rank(), size=hvd.size(), step=state.step)
    while state.last is None or state.step < state.last:
        state.optimizer.zero_grad()
        state.model(torch.full((1, task.WEIGHTS), task.gradient(state.step))).sum().backward()
        state.optimizer.step()
        task.end_step(hvd, state, pause)


def main(pause: float) -> None:
    hvd.init()
    model = torch.nn.Linear(task.WEIGHTS, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=task.LEARNING_RATE, momentum=task.MOMENTUM)
    state: Any = hvd.elastic.TorchState(model, hvd.DistributedOptimizer(optimizer), step=0, last=None)
    train(state, pause)
    weights = hvd.allgather_object(model.weight.flatten().tolist())
    task.report_end(hvd.rank(), hvd.size(), state.step, weights)


if __name__ == "__main__":
    main(float(sys.argv[1]))
