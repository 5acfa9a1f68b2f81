"""Tests of features that only MXNet 2 has: blocks over `mxnet.np`, and dictionaries of parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import perseus_like.mxnet as hvd

ROWS, STEPS = 4, 20


@pytest.fixture(autouse=True)
def numpy_arrays() -> Iterator[None]:
    mx.npx.set_np()
    yield
    mx.npx.reset_np()


def make_net(hybrid: bool) -> Any:
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(8, 3, activation="relu"), gluon.nn.Dense(5))
    net.initialize(mx.init.Xavier())
    if hybrid:
        net.hybridize()
    net(mx.np.zeros((1, 2, 6, 6)))
    return net


def train(net: Any, trainer: Any, part: slice, divisor: int, size: int) -> None:
    random = np.random.RandomState(5)
    loss = gluon.loss.L2Loss()
    for _ in range(STEPS):
        values, wanted = random.randn(size * ROWS, 2, 6, 6)[part], random.randn(size * ROWS, 5)[part]
        with autograd.record():
            losses = loss(net(mx.np.array(values, dtype="float32")), mx.np.array(wanted, dtype="float32"))
        losses.backward()
        trainer.step(divisor)


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("way", ["trainer", "key-value store"])
def test_trains_as_one_process_with_the_whole_batch(way: str, hybrid: bool, rank: int, size: int) -> None:
    mine, alone = make_net(hybrid), make_net(hybrid)
    hvd.broadcast_parameters(mine.collect_params(), prefix=f"{way}.{hybrid}.")
    for name, parameter in alone.collect_params().items():
        parameter.set_data(mine.collect_params()[name].data())
    settings = {"learning_rate": 0.1, "momentum": 0.9}
    if way == "trainer":
        trainer, divisor = hvd.DistributedTrainer(mine.collect_params(), "sgd", settings), ROWS
    else:
        trainer, divisor = (
            gluon.Trainer(mine.collect_params(), "sgd", settings, kvstore="dist_sync_perseus"),
            ROWS * size,
        )
    train(mine, trainer, slice(rank * ROWS, (rank + 1) * ROWS), divisor, size)
    train(alone, gluon.Trainer(alone.collect_params(), "sgd", settings), slice(None), ROWS * size, size)
    for name, parameter in alone.collect_params().items():
        ours = mine.collect_params()[name].data().asnumpy()
        np.testing.assert_allclose(ours, parameter.data().asnumpy(), rtol=1e-5, atol=1e-5, err_msg=name)


def test_there_is_no_synchronized_batch_normalization() -> None:
    with pytest.raises(RuntimeError, match=r"install MXNet 1\.9"):
        hvd.PerseusSyncBatchNorm()
