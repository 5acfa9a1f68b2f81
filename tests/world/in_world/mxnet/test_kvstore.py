"""Tests of the key-value store: in gluon's Trainer, in Module.fit, and with direct calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import perseus_like.mxnet as hvd

from .test_training import (
    OPTIONS,
    ROWS,
    assert_equal,
    batches,
    fit,
    make_net,
    make_symbol,
    own_rows,
    reference,
    start_from_equal_weights,
    train,
    weights,
)


def test_names_and_numbers(rank: int, size: int) -> None:
    for store in (
        mx.kv.create("dist_sync_perseus"),
        mx.kvstore.create("dist-sync-perseus"),
        hvd.create(),
        hvd.create("dist-sync-perseus"),
    ):
        assert isinstance(store, mx.kvstore.KVStoreBase)
        assert (store.type, store.rank, store.num_workers) == ("dist_sync_perseus", rank, size)
        assert store.local_rank == rank
        assert store.is_capable("optimizer")
    assert hvd.create("local").type == "local"
    with pytest.raises(ValueError, match="unknown"):
        store.is_capable("magic")


def test_by_hand_without_an_optimizer(rank: int, size: int) -> None:
    store = hvd.create()
    store.init(3, mx.nd.full((2, 2), rank + 5))
    out = mx.nd.zeros((2, 2))
    store.pull(3, out=out)
    assert out.asnumpy().tolist() == [[5, 5]] * 2
    store.push(3, [mx.nd.full((2, 2), rank), mx.nd.ones((2, 2))])
    store.pull(3, out=[out, out])
    total = sum(range(size)) + size
    assert out.asnumpy().tolist() == [[total] * 2] * 2
    gradient = mx.nd.full((2, 2), rank + 1.0)
    store.pushpull(3, gradient)
    assert gradient.asnumpy().tolist() == [[sum(range(size + 1))] * 2] * 2
    store.broadcast(["a", "b"], [mx.nd.full((1,), rank), mx.nd.full((1,), rank + 10)], out=[out[0, :1], out[1, :1]])
    assert out[:, 0].asnumpy().tolist() == [0, 10]
    store.pull(["b", "a"], out=[out[0, :1], out[1, :1]])
    assert out[:, 0].asnumpy().tolist() == [10, 0]
    store.barrier()
    with pytest.raises(ValueError, match="already"):
        store.init(3, mx.nd.ones((1,)))
    with pytest.raises(ValueError, match="'never'"):
        store.pull("never", out=out)


def test_by_hand_with_an_optimizer(rank: int, size: int) -> None:
    store = hvd.create()
    store.set_optimizer(mx.optimizer.SGD(learning_rate=0.5, momentum=0.5))
    store.init("w", mx.nd.ones((2,)))
    weight = mx.nd.zeros((2,))
    for _ in range(2):
        store.push("w", mx.nd.full((2,), rank + 1))
    store.pull("w", out=weight)
    gradient = sum(range(size + 1))
    assert weight.asnumpy() == pytest.approx(1 - 0.5 * gradient * (1 + 1.5))


def test_rows(rank: int, size: int) -> None:
    store = hvd.create()
    store.init("rows", mx.nd.zeros((4, 2)))
    pushed = mx.nd.sparse.row_sparse_array((np.ones((1, 2)), [rank % 4]), shape=(4, 2))
    store.push("rows", pushed)
    out = mx.nd.sparse.zeros("row_sparse", (4, 2))
    store.row_sparse_pull("rows", out=out, row_ids=mx.nd.array([0, 3]))
    expected = np.zeros((4, 2))
    np.add.at(expected, [each % 4 for each in range(size)], 1)
    expected[1:3] = 0
    np.testing.assert_array_equal(out.asnumpy(), expected)


@pytest.mark.parametrize("update_on_kvstore", [None, False])
def test_gluon_trainer(update_on_kvstore: bool | None, rank: int, size: int) -> None:
    images, labels = batches(size)
    net = make_net(3)
    start_from_equal_weights(net, images)  # gluon would get the weights only after the first backward pass
    trainer = gluon.Trainer(
        net.collect_params(), "sgd", OPTIONS["sgd"], kvstore="dist_sync_perseus", update_on_kvstore=update_on_kvstore
    )
    # Gradients are summed, as with MXNet's dist_sync, so the divisor is the batch of all ranks.
    train(net, trainer, own_rows(rank, images), own_rows(rank, labels), ROWS * size)
    assert_equal(weights(net), reference(size, "sgd", OPTIONS["sgd"]))


@pytest.mark.parametrize("kvstore", ["dist_sync_perseus", "dist-sync-perseus", "object"])
def test_module_fit(kvstore: str, rank: int, size: int) -> None:
    images, labels = batches(size)
    options = {"learning_rate": 0.1, "momentum": 0.9}
    plain = mx.optimizer.create("sgd", rescale_grad=1 / (ROWS * size), **options)
    expected = fit(images, labels, plain, ROWS * size, kvstore=None)
    store: Any = hvd.create() if kvstore == "object" else kvstore
    mine = (own_rows(rank, images), own_rows(rank, labels))
    actual = fit(*mine, "sgd", ROWS, kvstore=store, optimizer_params=options)
    assert_equal(actual, expected)


def fit_from_different_weights(rank: int, size: int) -> list[Any]:
    """Trains by Module.fit. Each rank starts with its own random weights."""
    images, labels = batches(size)
    data = mx.io.NDArrayIter(images[0], labels[0], ROWS)
    module = mx.mod.Module(make_symbol())
    mx.random.seed(40 + rank)
    module.fit(data, num_epoch=2, kvstore="dist_sync_perseus", initializer=mx.init.Normal())
    return [array.asnumpy() for _, array in sorted(module.get_params()[0].items())]


def test_ranks_with_different_weights_end_with_equal_weights(rank: int, size: int) -> None:
    mine = fit_from_different_weights(rank, size)
    for other in hvd.allgather_object(mine):
        assert_equal(mine, other, 0)


def test_different_weights_without_updates_on_the_store_are_an_error(
    two_ranks: None, rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MXNet then updates outside of the store, and does not get the common initial weights from it."""
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", "0")
    with pytest.raises(ValueError, match="broadcast_parameters"):
        fit_from_different_weights(rank, size)


def test_compression(rank: int, size: int) -> None:
    store = hvd.create()
    exact = 1 / 3
    for kind, error in (("fp16", 1e-3), ("bf16", 1e-2)):
        store.set_gradient_compression({"type": kind})
        gradient = mx.nd.full((100,), exact)
        store.pushpull(kind, gradient)
        found = gradient.asnumpy() / size
        assert found == pytest.approx(exact, abs=error)
        assert (found != np.float32(exact)).all()
    with pytest.raises(ValueError, match="3bit"):
        store.set_gradient_compression({"type": "3bit"})
    with pytest.raises(ValueError, match="positive"):
        store.set_gradient_compression({"type": "2bit", "threshold": -1})


def test_two_bits(rank: int, size: int) -> None:
    """The parts that a step leaves out are sent later, so the sums differ by less than one threshold for each rank."""
    store = hvd.create()
    store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    random = np.random.RandomState(3)
    gradients = random.uniform(-0.4, 0.4, (12, size, 50)).astype("float32")
    total = np.zeros(50)
    for step in range(len(gradients)):
        gradient = mx.nd.array(gradients[step, rank])
        store.pushpull("g", gradient)
        found = gradient.asnumpy()
        assert set(np.round(np.abs(found) / 0.5, 6)) <= set(range(size + 1))
        total += found
    assert np.abs(total - gradients.sum((0, 1), dtype=np.float64)).max() < 0.5 * size + 1e-5


def test_two_stores_and_states(rank: int, size: int) -> None:
    stores = [hvd.create() for _ in range(2)]
    for store in stores:
        store.set_optimizer(mx.optimizer.Adam())
        store.init("w", mx.nd.ones((2,)))
        store.push("w", mx.nd.ones((2,)))
    file = Path(f"states.{rank}")
    stores[0].save_optimizer_states(str(file))
    stores[1].load_optimizer_states(str(file))
    file.unlink()
    with pytest.raises(ValueError, match="set_optimizer"):
        hvd.create().save_optimizer_states("none")


def test_gluon_trainer_saves_and_loads_states(rank: int, size: int) -> None:
    net = gluon.nn.Dense(1, in_units=2)
    net.initialize(mx.init.One())
    trainer = gluon.Trainer(net.collect_params(), "adam", kvstore="dist_sync_perseus")
    with autograd.record():
        loss = net(mx.nd.ones((1, 2))).sum()
    loss.backward()
    trainer.step(size)
    file = Path(f"trainer.{rank}")
    trainer.save_states(str(file))
    trainer.load_states(str(file))
    file.unlink()
