"""Trains with a sharded optimizer in an elastic job. Its update takes much of a step, so that workers die during it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

import perseus_like.torch as hvd

sys.path.insert(0, str(Path(__file__).parent))
import steps as task  # type: ignore[import-not-found]

ROWS = 1 << 17


class Rows(torch.nn.Module):
    """Has many copies of the weights, which stay equal unless an update is lost or made in part."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.ones(ROWS, task.WEIGHTS))


@hvd.elastic.run
def train(state: Any) -> None:
    task.report("start", rank=hvd.rank(), size=hvd.size(), step=state.step)
    while state.last is None or state.step < state.last:
        state.optimizer.zero_grad()
        (state.model.weights * task.gradient(state.step)).sum().backward()
        state.optimizer.step()
        task.end_step(hvd, state, 0.0)


def main() -> None:
    hvd.init()
    model = Rows()
    optimizer = torch.optim.SGD(model.parameters(), lr=task.LEARNING_RATE, momentum=task.MOMENTUM)
    sharded = hvd.DistributedOptimizer(optimizer, shard=True)
    state: Any = hvd.elastic.TorchState(model, sharded, step=0, last=None)
    train(state)
    rows = model.weights.detach()
    is_whole = bool((rows == rows[0]).all())
    weights = hvd.allgather_object(rows[0].tolist() if is_whole else [float("nan")] * task.WEIGHTS)
    task.report_end(hvd.rank(), hvd.size(), state.step, weights)


if __name__ == "__main__":
    main()
