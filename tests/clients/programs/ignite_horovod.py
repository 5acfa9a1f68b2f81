"""Trains a small model with pytorch-ignite over the backend `horovod`.

With the argument `spawn`, ignite starts the ranks. Each rank prints the sum of the trained parameters.
"""

from __future__ import annotations

import sys
from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events


def train(local_rank: int) -> None:
    torch.manual_seed(idist.get_rank())  # auto_model broadcasts rank 0's parameters
    model = idist.auto_model(torch.nn.Linear(8, 1))
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.1))
    data = torch.utils.data.TensorDataset(torch.arange(64.0).reshape(8, 8) / 64, torch.arange(8.0).reshape(8, 1))
    loader = idist.auto_dataloader(data, batch_size=4, shuffle=False)

    def step(_: Engine, batch: Any) -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(batch[0]), batch[1])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.item()

    trainer = Engine(step)

    def report() -> None:
        total = sum(parameter.sum().item() for parameter in model.parameters())
        gathered = idist.all_gather(total)
        assert set(gathered) == {total}, gathered
        print(f"RESULT {idist.backend()} of {idist.get_world_size()} sum {total!r}", flush=True)

    trainer.add_event_handler(Events.COMPLETED, report)
    trainer.run(loader, max_epochs=2)


if __name__ == "__main__":
    ranks = {"nproc_per_node": 2} if "spawn" in sys.argv[1:] else {}
    with idist.Parallel(backend="horovod", **ranks) as parallel:
        parallel.run(train)
