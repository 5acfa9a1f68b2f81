"""Trains as one replica of torchft, and prints a line per step. `benchmarks.lost_replica` starts it.

python -m benchmarks.torchft_replica perseus LIGHTHOUSE NUMBER
"""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from typing import Any

import torch
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]

LIMIT = timedelta(seconds=30)


def make_group(kind: str) -> Any:
    if kind == "gloo":
        from torchft import ProcessGroupGloo  # type: ignore[import-not-found]

        return ProcessGroupGloo(timeout=LIMIT)
    from perseus_like.torch.distributed.reconfigurable import ReconfigurableGroup

    return ReconfigurableGroup(timeout=LIMIT)


def train(kind: str, lighthouse: str, number: int) -> None:
    """Trains until the process is killed. A line has the step, the number of replicas and the monotonic clock."""
    from torchft import DistributedDataParallel, Manager, Optimizer
    from torchft.checkpointing.http_transport import HTTPTransport  # type: ignore[import-not-found]

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torch.manual_seed(number)
    network = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1))
    sgd = torch.optim.SGD(network.parameters(), lr=1e-3)

    def load_state_dict(state: Any) -> None:
        network.load_state_dict(state["model"])
        sgd.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=make_group(kind),
        min_replica_size=1,
        load_state_dict=load_state_dict,
        state_dict=lambda: {"model": network.state_dict(), "optimizer": sgd.state_dict()},
        replica_id=f"replica_{number}",
        lighthouse_addr=lighthouse,
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        timeout=LIMIT,
        checkpoint_transport=HTTPTransport(timeout=LIMIT, num_chunks=0),
    )
    model = DistributedDataParallel(manager, network)
    optimizer = Optimizer(manager, sgd)
    while True:
        before = manager.current_step()
        inputs = torch.randn(16, 256)
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        if manager.current_step() > before:
            print(manager.current_step(), manager.num_participants(), time.monotonic(), flush=True)


if __name__ == "__main__":
    train(sys.argv[1], sys.argv[2], int(sys.argv[3]))
