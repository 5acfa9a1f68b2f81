"""Functions for a model under DistributedDataParallel, and a model that each rank trains alone on all batches."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")


import perseus_like.torch as hvd  # noqa: E402
from perseus_like.torch.nn import parallel as ours  # noqa: E402

from ..training import (  # noqa: E402
    batch,
    build,
    loss_of,
    part,
)

DistributedDataParallel: Any = ours.DistributedDataParallel


def pair(name: str = "mlp", **options: Any) -> tuple[Any, Any]:
    """Returns a model that all ranks train together, and its copy, which each rank trains alone on all batches."""
    alone = build(name)
    return DistributedDataParallel(build(name), **options), alone


def both_gradients(parallel: Any, alone: Any, number: int, rank: int, size: int) -> None:
    inputs, targets = batch(number, size)
    loss_of(parallel, part(inputs, rank), part(targets, rank)).backward()
    loss_of(alone, inputs, targets).backward()


def assert_equal_gradients(parallel: Any, alone: Any) -> None:
    for (name, mine), theirs in zip(parallel.named_parameters(), alone.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None), name
        if mine.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-9, atol=1e-12, msg=name)


def assert_alike(tensor: Any) -> None:
    everybody = hvd.allgather(tensor.reshape(1, -1))
    assert torch.equal(everybody, everybody[:1].expand_as(everybody))


def sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
