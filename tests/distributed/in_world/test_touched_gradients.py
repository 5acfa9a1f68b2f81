"""Programs that touch gradients and parameters while torch's DistributedDataParallel trains over the backend."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.world.in_world.torch import touches


def _outcome(group: Any, cell: tuple[int, str, str, bool], rank: int, size: int) -> Any:
    def wrap(model: Any, two_passes: bool, uses_scaler: bool) -> tuple[Any, Any]:
        return DistributedDataParallel(model, process_group=group), torch.optim.SGD(model.parameters(), lr=0.1)

    try:
        return torch.cat([weight.flatten() for weight in touches.train(wrap, cell, rank, size, True)])
    except RuntimeError as error:
        return str(error)


def test_touched_gradients_give_what_they_give_with_gloo(rank: int, size: int) -> None:
    """All ranks do the same. Whatever torch's class makes of it, the backend makes no difference."""
    wrong = []
    gloo = dist.new_group(backend="gloo")
    for cell in touches.cells():
        *name, everywhere = cell
        if not everywhere:
            continue
        ours, theirs = (_outcome(group, cell, rank, size) for group in (None, gloo))
        equal = ours == theirs if isinstance(ours, str) else torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)
        if not equal:
            wrong.append(f"{name}: {ours} in place of {theirs}")
    dist.destroy_process_group(gloo)
    assert wrong == []
