"""Mistakes in the use of the sharded optimizer raise errors that say what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import perseus_like.torch as hvd

Make = Callable[[Any], Any]


def model_of() -> torch.nn.ModuleDict:
    torch.manual_seed(0)
    return torch.nn.ModuleDict({"middle": torch.nn.Linear(4, 4)})


REFUSED: dict[str, tuple[Make, str]] = {
    "LBFGS": (lambda p: hvd.ZeroRedundancyOptimizer(p, torch.optim.LBFGS, lr=1), "needs all gradients at once"),
    "RMSprop": (lambda p: hvd.ZeroRedundancyOptimizer(p, torch.optim.RMSprop, lr=1), "no kernel for it"),
    "amsgrad": (lambda p: hvd.ZeroRedundancyOptimizer(p, torch.optim.Adam, amsgrad=True), "omit amsgrad"),
    "double": (
        lambda _: hvd.ZeroRedundancyOptimizer([torch.nn.Parameter(torch.ones(2).double())], torch.optim.SGD, lr=1),
        "only float32 and bfloat16",
    ),
    "gaps": (
        lambda _: hvd.ZeroRedundancyOptimizer([torch.nn.Parameter(torch.ones(8)[::2])], torch.optim.SGD, lr=1),
        "has gaps between its elements",
    ),
    "compression": (
        lambda p: hvd.DistributedOptimizer(torch.optim.SGD(p, lr=1), compression=hvd.Compression.fp16, shard=True),
        "does not support compression",
    ),
    "device": (
        lambda _: hvd.ZeroRedundancyOptimizer(
            [torch.nn.Parameter(torch.ones(2, device="meta"))], torch.optim.SGD, lr=1
        ),
        "only dense CPU parameters",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_sharded_is_refused(what: str) -> None:
    make, text = REFUSED[what]
    with pytest.raises(RuntimeError, match=text):
        make(list(model_of().parameters()))


@pytest.mark.usefixtures("two_ranks")
def test_ranks_with_different_parameters() -> None:
    parameters = [torch.nn.Parameter(torch.ones(2 + hvd.rank()))]
    with pytest.raises(hvd.HorovodInternalError, match="the ranks share different parameters: at position 0, rank 0"):
        hvd.ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=0.1)


def test_a_parameter_that_leaves_the_memory() -> None:
    model = model_of()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), shard=True
    )
    hvd.barrier()
    weight = model.get_parameter("middle.weight")
    weight.data = weight.data.clone()
    with pytest.raises(RuntimeError, match=r"'middle\.weight' has left the memory"):
        optimizer.step()
    hvd.barrier()
    hvd.unshare_parameters(model)
    optimizer.step()  # shares them again
    everybody = hvd.allgather_object(model.state_dict()["middle.weight"].tolist())
    assert all(each == everybody[0] for each in everybody)
