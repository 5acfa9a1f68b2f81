"""Checks that training with top-k and 1-bit compression between hosts sends few bytes and reduces the loss."""

from __future__ import annotations

import pytest

from tests.job import needs, succeeded

from .conftest import OnHosts, ReportsOf, TestBeds

TRAINING = """
import torch
import perseus_like.torch as hvd

hvd.init()
rank, size = hvd.rank(), hvd.size()
kind = {"top_k": hvd.Compression.top_k(ratio=0.02), "one_bit": hvd.Compression.one_bit}.get(os.environ["KIND"])
compression = hvd.Compression.none if kind is None else hvd.Compression.between_hosts(kind)

def sent():
    with open("/sys/class/net/eth0/statistics/tx_bytes") as file:
        return int(file.read())

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 16))
truth = torch.randn(256, 16)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
sgd = torch.optim.SGD(model.parameters(), lr=0.05)
optimizer = hvd.DistributedOptimizer(sgd, named_parameters=model.named_parameters(), compression=compression)
torch.manual_seed(rank)
losses, before = [], 0
for step in range(30):
    if step == 10:
        hvd.barrier()
        before = sent()
    data = torch.randn(64, 256)
    optimizer.zero_grad()
    loss = (model(data) - data @ truth / 16).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(float(loss.detach()))
hvd.barrier()
count = sent() - before
mine = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
assert torch.equal(hvd.broadcast(mine, root_rank=0, name="mine"), mine)
report(losses[0], losses[-1], count / 20 / (4 * mine.numel()))
hvd.shutdown()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "share"),
    [pytest.param("none", (1.0, 1.3), marks=pytest.mark.slow), ("top_k", (0.01, 0.2)), ("one_bit", (0.02, 0.2))],
)
def test_training(
    test_beds: TestBeds, on_hosts: OnHosts, reports_of: ReportsOf, kind: str, share: tuple[float, float]
) -> None:
    needs("torch")
    succeeded(on_hosts(test_beds(2), TRAINING, [2, 1], KIND=kind))
    first, last, sent = map(float, reports_of(0)[0].split())
    assert last < 0.93 * first
    # `sent` is the part of the gradients' bytes that this host sends in a step.
    assert share[0] < sent < share[1]
