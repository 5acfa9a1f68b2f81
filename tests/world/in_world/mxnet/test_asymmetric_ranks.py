"""Tests of ranks that do not make the same MXNet objects: they train on, or all get an error that names a parameter."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import pytest
from mxnet import autograd, gluon

import perseus_like.mxnet as hvd

pytestmark = pytest.mark.usefixtures("two_ranks")


def _optimizer() -> Any:
    return hvd.DistributedOptimizer(mx.optimizer.SGD(learning_rate=1.0))


def _updated(optimizer: Any, rank: int, elements: int = 2) -> Any:
    weight = mx.nd.zeros((elements,))
    optimizer.update(0, weight, mx.nd.full((elements,), rank + 1.0), optimizer.create_state(0, weight))
    return weight.asnumpy().tolist()


def test_extra_stores(rank: int, size: int) -> None:
    extra = [hvd.create(), hvd.create()] if rank == 0 else []
    store = hvd.create()
    store.init("w", mx.nd.full((2,), rank + 3.0))
    out = mx.nd.zeros((2,))
    store.pull("w", out=out)
    assert out.asnumpy().tolist() == [3.0, 3.0]
    assert len(extra) == (2 if rank == 0 else 0)


def test_stores_in_another_order(rank: int) -> None:
    stores = [hvd.create(), hvd.create()]
    place = min(rank, 1)
    with pytest.raises(hvd.DisagreementError, match=r"rank 0 has the key 'w0'.*, rank 1 has the key 'w1'"):
        stores[place].init(f"w{place}", mx.nd.ones((2,)))
    for place, store in enumerate(stores):
        store.init(f"w{place}", mx.nd.ones((2,)))


def test_optimizers(rank: int, size: int) -> None:
    """One rank makes an optimizer that it does not use. Then the ranks use theirs in another order."""
    extra = [_optimizer()] if rank == 0 else []
    optimizers = [_optimizer(), _optimizer()]
    with pytest.raises(hvd.DisagreementError, match=r"rank 0 has .*float32\[2\], rank 1 has .*float32\[3\]"):
        _updated(optimizers[min(rank, 1)], rank, 2 + min(rank, 1))
    for optimizer in optimizers:
        assert _updated(optimizer, rank) == [-(size + 1) / 2] * 2
    assert len(extra) == (rank == 0)


@pytest.mark.parametrize("hybridize", [False, True])
def test_layers_of_batch_norm(hybridize: bool, rank: int) -> None:
    """One rank makes a further model, with layers that communicate, and evaluates it."""

    def build() -> Any:
        net = gluon.nn.HybridSequential()
        net.add(hvd.PerseusSyncBatchNorm(in_channels=3, comm_scope=1), hvd.PerseusSyncBatchNorm(in_channels=3))
        net.initialize()
        if hybridize:
            net.hybridize()
        return net

    if rank == 0:
        build()(mx.nd.ones((2, 3, 4)))
    net = build()
    values = mx.nd.full((2, 3, 4), rank)
    with autograd.record():
        result = net(values)
    result.backward()
    result.wait_to_read()
    if rank != 0:
        build()  # gluon gives the blocks of later tests the same names on all ranks
    assert net[0].running_mean.data().asnumpy() == pytest.approx(0.1 * sum(range(hvd.size())) / hvd.size())
