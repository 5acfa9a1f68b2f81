"""Compares PerseusSyncBatchNorm with MXNet's BatchNorm on the whole batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import perseus_like.mxnet as hvd

ROWS, CHANNELS = 3, 5


def whole_batch(size: int, shape: tuple[int, ...] = (4, 4)) -> tuple[Any, Any]:
    random = np.random.RandomState(7)
    values = random.randn(size * ROWS, CHANNELS, *shape) * 2 + 3
    return values.astype("float32"), random.randn(*values.shape).astype("float32")


def own(rank: int, array: Any) -> Any:
    return mx.nd.array(array[rank * ROWS : (rank + 1) * ROWS])


def make(layer: Any) -> Any:
    layer.initialize()
    layer(mx.nd.ones((1, CHANNELS, 4, 4)))
    layer.gamma.set_data(mx.nd.arange(CHANNELS) + 0.5)
    layer.beta.set_data(mx.nd.arange(CHANNELS) / 10)
    return layer


def run(layer: Any, values: Any, gradient: Any) -> dict[str, Any]:
    values = values.copy()
    values.attach_grad()
    with autograd.record():
        result = layer(values)
    result.backward(gradient)
    found = {
        "result": result.asnumpy(),
        "by_values": values.grad.asnumpy(),
        "mean": layer.running_mean.data().asnumpy(),
        "variance": layer.running_var.data().asnumpy(),
        "by_beta": layer.beta.grad().asnumpy(),
    }
    if layer.gamma.grad_req != "null":
        found["by_gamma"] = layer.gamma.grad().asnumpy()
    return found


def assert_equal_to_whole_batch(actual: dict[str, Any], expected: dict[str, Any], rank: int) -> None:
    rows = slice(rank * ROWS, (rank + 1) * ROWS)
    for name, mine in actual.items():
        whole = expected[name]
        if name in ("result", "by_values"):
            whole = whole[rows]
        elif name in ("by_gamma", "by_beta"):
            mine = hvd.allreduce(mx.nd.array(mine), op=hvd.Sum).asnumpy()
        np.testing.assert_allclose(mine, whole, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("hybrid", [None, {}, {"static_alloc": True, "static_shape": True}], ids=str)
@pytest.mark.parametrize("comm_scope", [0, 1])
def test_equals_batch_norm_on_the_whole_batch(
    comm_scope: int, hybrid: dict[str, bool] | None, rank: int, size: int
) -> None:
    values, gradient = whole_batch(size)
    layer = make(mx.gluon.contrib.nn.PerseusSyncBatchNorm(comm_scope=comm_scope))
    plain = make(gluon.nn.BatchNorm())
    if hybrid is not None:
        layer.hybridize(**hybrid)
    for _ in range(3):
        expected = run(plain, mx.nd.array(values), mx.nd.array(gradient))
        assert_equal_to_whole_batch(run(layer, own(rank, values), own(rank, gradient)), expected, rank)
    inference = layer(own(rank, values)).asnumpy()
    np.testing.assert_allclose(inference, plain(own(rank, values)).asnumpy(), rtol=1e-5, atol=1e-5)


def test_gradients_are_added_with_grad_req_add(rank: int, size: int) -> None:
    values, gradient = whole_batch(size)
    found = []
    for passes in (1, 3):
        layer = make(mx.gluon.contrib.nn.PerseusSyncBatchNorm(comm_scope=1))
        layer.collect_params().setattr("grad_req", "add")
        layer.collect_params().zero_grad()
        for _ in range(passes):
            run(layer, own(rank, values), own(rank, gradient))
        found.append([parameter.grad().asnumpy() for parameter in (layer.gamma, layer.beta)])
    once, thrice = found
    for one, three in zip(once, thrice, strict=True):
        np.testing.assert_allclose(three, 3 * one, rtol=1e-5, atol=1e-5)


def test_equals_numpy_if_the_mean_is_much_larger_than_the_deviation(rank: int, size: int) -> None:
    random = np.random.RandomState(3)
    values = (random.randn(size * ROWS, CHANNELS, 6, 7) * [[[[1]], [[0.1]], [[10]], [[1]], [[0]]]] + 3000).astype(
        "float32"
    )
    gradient = random.randn(*values.shape).astype("float32")
    layer = make(mx.gluon.contrib.nn.PerseusSyncBatchNorm(comm_scope=1))
    found = run(layer, own(rank, values), own(rank, gradient))
    wide, by_result = values.astype(np.float64), gradient.astype(np.float64)
    gamma, beta = (array.reshape(1, -1, 1, 1) for array in (np.arange(CHANNELS) + 0.5, np.arange(CHANNELS) / 10))
    axes = (0, 2, 3)
    each: Any = {"axis": axes, "keepdims": True}
    scale = 1 / np.sqrt(wide.var(**each) + 1e-5)
    normal = (wide - wide.mean(**each)) * scale
    by_values = gamma * scale * (by_result - by_result.mean(**each) - normal * (by_result * normal).mean(**each))
    expected = {
        "result": normal * gamma + beta,
        "by_values": by_values,
        "mean": wide.mean(axes) * 0.1,
        "variance": 0.9 + wide.var(axes) * 0.1,
        "by_gamma": (by_result * normal).sum(axes),
        "by_beta": by_result.sum(axes),
    }
    # Values near 3000 have an error of 1e-4, and the second channel's differences are a thousandth of that range.
    assert_equal_to_whole_batch(found, expected, rank)


def convolutional(normalization: Any) -> Any:
    net = gluon.nn.HybridSequential()
    for _ in range(2):
        # With this number of channels, oneDNN uses a blocked layout.
        net.add(gluon.nn.Conv2D(16, 3, padding=1, use_bias=False), normalization(), gluon.nn.Activation("relu"))
        net.add(gluon.nn.MaxPool2D())
    net.add(gluon.nn.Dense(3))
    net.initialize(mx.init.Xavier())
    net(mx.nd.zeros((1, CHANNELS, 12, 12)))
    return net


@pytest.mark.parametrize("hybrid", [None, {}, {"static_alloc": True, "static_shape": True}], ids=str)
def test_behind_convolutions(hybrid: dict[str, bool] | None, rank: int, size: int) -> None:
    values, _ = whole_batch(size, (12, 12))
    nets = [
        convolutional(lambda: mx.gluon.contrib.nn.PerseusSyncBatchNorm(comm_scope=1)),
        convolutional(gluon.nn.BatchNorm),
    ]
    mine, plain = nets
    hvd.broadcast_parameters(plain.collect_params())
    for parameter, other in zip(mine.collect_params().values(), plain.collect_params().values(), strict=True):
        parameter.set_data(other.data())
    if hybrid is not None:
        mine.hybridize(**hybrid)
    settings = {"learning_rate": 0.05, "momentum": 0.9}
    trainers = [
        hvd.DistributedTrainer(mine.collect_params(), "sgd", settings),
        gluon.Trainer(plain.collect_params(), "sgd", settings),
    ]
    rows = slice(rank * ROWS, (rank + 1) * ROWS)
    labels = mx.nd.arange(size * ROWS) % 3
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    for _ in range(10):
        for net, trainer, part in zip(nets, trainers, (rows, slice(None)), strict=True):
            batch = mx.nd.array(values[part])
            with autograd.record():
                losses = loss(net(batch), labels[part])
            losses.backward()
            trainer.step(len(batch))
    for parameter, other in zip(mine.collect_params().values(), plain.collect_params().values(), strict=True):
        actual, expected = parameter.data().asnumpy(), other.data().asnumpy()
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5, err_msg=parameter.name)


def test_one_dimension_and_fixed_gamma(rank: int, size: int) -> None:
    values, gradient = whole_batch(size, ())
    layers = [mx.gluon.contrib.nn.PerseusSyncBatchNorm(scale=False), gluon.nn.BatchNorm(scale=False)]
    for layer in layers:
        layer.initialize()
        layer(mx.nd.ones((1, CHANNELS)))
    expected = run(layers[1], mx.nd.array(values), mx.nd.array(gradient))
    assert_equal_to_whole_batch(run(layers[0], own(rank, values), own(rank, gradient)), expected, rank)


def test_half_precision(rank: int, size: int) -> None:
    values, _ = whole_batch(size)
    layer, plain = make(mx.gluon.contrib.nn.PerseusSyncBatchNorm()), make(gluon.nn.BatchNorm())
    layer.cast("float16")
    with autograd.record():
        mine = layer(own(rank, values).astype("float16"))
        whole = plain(mx.nd.array(values))
    assert mine.dtype == np.float16
    rows = whole.asnumpy()[rank * ROWS : (rank + 1) * ROWS]
    np.testing.assert_allclose(mine.asnumpy(), rows, rtol=1e-2, atol=2e-2)


def test_a_layer_used_twice_in_one_pass(rank: int, size: int) -> None:
    """Each use of the layer has its own statistics."""
    values, gradient = whole_batch(size)
    layer, plain = make(mx.gluon.contrib.nn.PerseusSyncBatchNorm()), make(gluon.nn.BatchNorm())
    layer.hybridize(static_alloc=True)
    found = []
    for each, first, second, grad in (
        (layer, own(rank, values), own(rank, values * 2 + 1), own(rank, gradient)),
        (plain, mx.nd.array(values), mx.nd.array(values * 2 + 1), mx.nd.array(gradient)),
    ):
        for array in (first, second):
            array.attach_grad()
        with autograd.record():
            results = [each(first), each(second)]
        autograd.backward(results, [grad, grad])
        found.append([array.asnumpy() for array in (*results, first.grad, second.grad)])
    rows = slice(rank * ROWS, (rank + 1) * ROWS)
    for mine, whole in zip(*found, strict=True):
        np.testing.assert_allclose(mine, whole[rows], rtol=1e-5, atol=1e-5)


def test_evaluation_is_local(two_ranks: None, rank: int, size: int) -> None:
    layer = make(mx.gluon.contrib.nn.PerseusSyncBatchNorm(use_global_stats=False))
    if rank == 0:
        assert layer(mx.nd.ones((2, CHANNELS, 2, 2))).shape == (2, CHANNELS, 2, 2)
    frozen = make(mx.gluon.contrib.nn.PerseusSyncBatchNorm(use_global_stats=True))
    if rank == 0:
        assert run(frozen, mx.nd.ones((2, CHANNELS, 2, 2)), mx.nd.ones((2, CHANNELS, 2, 2)))["mean"].max() == 0


def symbols(synchronized: bool) -> Any:
    data = mx.sym.Variable("data")
    data = mx.sym.Convolution(data, num_filter=4, kernel=(3, 3), name="conv")
    if synchronized:
        gamma, mean = mx.sym.Variable("norm_gamma"), mx.sym.Variable("norm_moving_mean", init=mx.init.Zero())
        options = {"name": "norm", "fix_gamma": False, "comm_scope": 1}
        data = mx.sym.contrib.PerseusSyncBatchNorm(data, gamma, moving_mean=mean, **options)
    else:
        data = mx.sym.BatchNorm(data, name="norm", fix_gamma=False, eps=1e-3)
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(data, num_hidden=3, name="fc"), name="softmax")


def fit(symbol: Any, values: Any, labels: Any, rows: int, kvstore: Any, rank: int) -> Any:
    data = mx.io.NDArrayIter(values, labels, rows)
    module = mx.mod.Module(symbol)
    module.bind(data.provide_data, data.provide_label)
    mx.random.seed(21)
    module.init_params(mx.init.Xavier())
    hvd.broadcast_parameters(module.get_params()[0])
    module.fit(data, num_epoch=5, kvstore=kvstore, optimizer_params={"learning_rate": 0.05})
    return module


def test_symbol_in_module_saved_and_loaded(rank: int, size: int) -> None:
    values, _ = whole_batch(size)
    labels = np.arange(size * ROWS) % 3
    plain = fit(symbols(False), values, labels, ROWS * size, None, rank)
    rows = slice(rank * ROWS, (rank + 1) * ROWS)
    module = fit(symbols(True), values[rows], labels[rows], ROWS, "dist_sync_perseus", rank)
    for mine, whole in zip(module.get_params(), plain.get_params(), strict=True):
        assert mine.keys() == whole.keys()
        for name in mine:
            np.testing.assert_allclose(mine[name].asnumpy(), whole[name].asnumpy(), rtol=1e-4, atol=1e-5, err_msg=name)
    prefix = f"module.{rank}"
    module.save_checkpoint(prefix, 1)
    loaded = mx.mod.Module.load(prefix, 1)
    iterator = mx.io.NDArrayIter(values[:ROWS], batch_size=ROWS)
    loaded.bind(iterator.provide_data, for_training=False)
    expected = module.predict(iterator).asnumpy()
    np.testing.assert_allclose(loaded.predict(iterator).asnumpy(), expected, rtol=1e-6)
    remove(prefix)


def test_block_exported_and_imported(rank: int, size: int) -> None:
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(CHANNELS, 1), mx.gluon.contrib.nn.PerseusSyncBatchNorm(comm_scope=1))
    net.initialize()
    net.hybridize()
    values, _ = whole_batch(size)
    with autograd.record():
        net(own(rank, values))
    expected = net(mx.nd.array(values)).asnumpy()
    prefix = f"block.{rank}"
    net.export(prefix, 1)
    block = gluon.SymbolBlock.imports(f"{prefix}-symbol.json", ["data"], f"{prefix}-0001.params")
    np.testing.assert_allclose(block(mx.nd.array(values)).asnumpy(), expected, rtol=1e-5, atol=1e-6)
    remove(prefix)


def remove(prefix: str) -> None:
    for file in Path().glob(f"{prefix}*"):
        file.unlink()


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="comm_scope"):
        mx.gluon.contrib.nn.PerseusSyncBatchNorm(comm_scope=2)
    with pytest.raises(ValueError, match="output_mean_var"):
        mx.sym.contrib.PerseusSyncBatchNorm(mx.sym.Variable("data"), output_mean_var=True)
