"""Checks that DistributedTrainer and DistributedOptimizer give the weights of one process with the whole batch."""

from __future__ import annotations

import pickle
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import perseus_like.mxnet as hvd
from perseus_like import errors
from perseus_like.mxnet.compat.library import address_of

ROWS, STEPS = 8, 20  # ROWS is the number of rows of each rank
LOSS = gluon.loss.SoftmaxCrossEntropyLoss()


def array(content: Any, dtype: Any = "float32") -> Any:
    module = mx.np if mx.util.is_np_array() else mx.nd
    return module.array(content, dtype=dtype)


def batches(size: int) -> tuple[Any, Any]:
    random = np.random.RandomState(5)
    images = random.randn(STEPS, size * ROWS, 2, 8, 8).astype("float32")
    labels = random.randint(0, 3, (STEPS, size * ROWS)).astype("float32")
    return images, labels


def make_net(seed: int, hybrid: bool = False, dtype: str = "float32") -> Any:
    mx.random.seed(seed)
    np.random.seed(seed)
    net = gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(gluon.nn.Conv2D(16, 3, activation="relu"), gluon.nn.MaxPool2D())
        net.add(gluon.nn.Dense(20, activation="tanh"), gluon.nn.Dense(3))
    net.initialize(mx.init.Xavier())
    net.cast(dtype)
    if hybrid:
        net.hybridize(static_alloc=True, static_shape=True)
    return net


def train(net: Any, trainer: Any, images: Any, labels: Any, rows: int, steps: range = range(STEPS)) -> None:
    dtype = next(iter(net.collect_params().values())).dtype
    for step in steps:
        with autograd.record():
            loss = LOSS(net(array(images[step], dtype)), array(labels[step]))
        loss.backward()
        trainer.step(rows)


def weights(net: Any) -> list[Any]:
    return [parameter.data().asnumpy() for parameter in net.collect_params().values()]


def start_from_equal_weights(net: Any, images: Any) -> None:
    net(array(images[0][:1], next(iter(net.collect_params().values())).dtype))
    hvd.broadcast_parameters(net.collect_params())


def reference(size: int, optimizer: str, options: dict[str, float], dtype: str = "float32") -> list[Any]:
    """Returns the weights of one process that trains with the batches of all ranks."""
    images, labels = batches(size)
    net = make_net(3, dtype=dtype)
    train(net, gluon.Trainer(net.collect_params(), optimizer, options), images, labels, size * ROWS)
    return weights(net)


def own_rows(rank: int, array: Any) -> Any:
    return array[:, rank * ROWS : (rank + 1) * ROWS]


def assert_equal(actual: list[Any], expected: list[Any], tolerance: float = 1e-5) -> None:
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)


OPTIONS = {"sgd": {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-3}, "adam": {"learning_rate": 0.01}}


@pytest.mark.parametrize(
    ("optimizer", "hybrid", "groups"), [("sgd", False, 0), ("sgd", True, 0), ("adam", False, 2), ("adam", True, 2)]
)
def test_trainer(optimizer: str, hybrid: bool, groups: int, rank: int, size: int) -> None:
    images, labels = batches(size)
    net = make_net(3 if rank == 0 else 99, hybrid)  # all ranks use the weights of rank 0
    start_from_equal_weights(net, images)
    trainer = hvd.DistributedTrainer(net.collect_params(), optimizer, OPTIONS[optimizer], num_groups=groups)
    train(net, trainer, own_rows(rank, images), own_rows(rank, labels), ROWS)
    assert_equal(weights(net), reference(size, optimizer, OPTIONS[optimizer]))


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("way", ["trainer", "key-value store"])
@mx.util.use_np  # type: ignore[untyped-decorator]
def test_blocks_over_arrays_of_mxnet_numpy(way: str, hybrid: bool, rank: int, size: int) -> None:
    images, labels = batches(size)
    net = make_net(3 if rank == 0 else 99, hybrid)
    start_from_equal_weights(net, images)
    given = (net.collect_params(), "sgd", OPTIONS["sgd"])
    if way == "trainer":
        trainer, rows = hvd.DistributedTrainer(*given), ROWS
    else:
        trainer, rows = gluon.Trainer(*given, kvstore="dist_sync_perseus"), ROWS * size
    train(net, trainer, own_rows(rank, images), own_rows(rank, labels), rows)
    assert_equal(weights(net), reference(size, "sgd", OPTIONS["sgd"]))


def test_gradients_keep_their_places(two_ranks: None, rank: int, size: int) -> None:
    """Gradients stay adjacent in memory that the ranks share, from the first step to the last."""
    net = gluon.nn.Dense(3, in_units=16)
    net.initialize()
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", prefix="arena.")
    weight, bias = net.weight.grad(), net.bias.grad()
    for _ in range(3):
        with autograd.record():
            loss = net(mx.nd.full((2, 16), rank)).sum()
        loss.backward()
        trainer.allreduce_grads()
        assert net.weight.grad().asnumpy().tolist() == [[sum(range(size)) * 2 / size] * 16] * 3
        assert net.weight.grad() is weight
        assert net.bias.grad() is bias
        trainer.update(1)
    assert address_of(bias) - address_of(weight) == weight.size * 4


def test_a_trainer_after_the_first_pass_of_a_static_block(
    two_ranks: None, rank: int, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The static block has stored the addresses of its gradients."""
    net = gluon.nn.Dense(1, in_units=2, use_bias=False)
    net.initialize(mx.init.One())
    net.hybridize(static_alloc=True, static_shape=True)

    def step(trainer: Any) -> None:
        with autograd.record():
            loss = net(mx.nd.full((1, 2), rank)).sum()
        loss.backward()
        trainer.step(1)

    step(gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0}))
    net.collect_params().zero_grad()
    for _ in range(2):  # the second trainer takes over the buffers of the first
        trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 1.0})
        step(trainer)
        step(trainer)
    assert net.weight.data().asnumpy() == pytest.approx(1 - 4 * sum(range(size)) / size)
    assert "static_shape" in caplog.text or rank == 0  # rank 0's gradients are zero


@pytest.mark.parametrize(("compression", "tolerance"), [("fp16", 6e-3), ("bf16", 4e-2), ("own", 6e-3)])
def test_compression(compression: str, tolerance: float, rank: int, size: int) -> None:
    class Own(hvd.Compression.fp16):
        """A compressor that the core does not know, so its `compress` is called."""

    images, labels = batches(size)
    net = make_net(3)
    start_from_equal_weights(net, images)
    chosen = Own if compression == "own" else getattr(hvd.Compression, compression)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, compression=chosen)
    train(net, trainer, own_rows(rank, images), own_rows(rank, labels), ROWS)
    assert_equal(weights(net), reference(size, "sgd", {"learning_rate": 0.1}), tolerance)


def test_predivide_and_double(rank: int, size: int) -> None:
    images, labels = batches(size)
    net = make_net(3, dtype="float64")
    start_from_equal_weights(net, images)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, gradient_predivide_factor=4.0)
    train(net, trainer, own_rows(rank, images), own_rows(rank, labels), ROWS)
    assert_equal(weights(net), reference(size, "sgd", {"learning_rate": 0.1}, "float64"), 1e-6)


def test_parameters_that_change_during_training(rank: int, size: int) -> None:
    """Parameters are frozen, unfrozen, and get new gradient arrays."""
    images, labels = batches(size)
    nets = []
    for _ in range(2):
        nets.append(make_net(3))
        start_from_equal_weights(nets[-1], images)
    trainers = [
        hvd.DistributedTrainer(nets[0].collect_params(), "sgd", {"learning_rate": 0.1}),
        gluon.Trainer(nets[1].collect_params(), "sgd", {"learning_rate": 0.1}),
    ]
    rows = [(own_rows(rank, images), own_rows(rank, labels), ROWS), (images, labels, size * ROWS)]
    for net, trainer, mine in zip(nets, trainers, rows, strict=True):
        train(net, trainer, *mine, range(2))
        net[2].weight.grad_req = "null"
        train(net, trainer, *mine, range(2, 4))
        net[2].weight.grad_req = "write"
        net.collect_params().reset_ctx(mx.cpu(0))
        train(net, trainer, *mine, range(4, 6))
    assert_equal(weights(nets[0]), weights(nets[1]))


def test_gradients_of_several_passes_are_added(rank: int, size: int) -> None:
    net = gluon.nn.Dense(1, in_units=2, use_bias=False)
    net.initialize(mx.init.One())
    net.weight.grad_req = "add"
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 1.0})
    for _ in range(3):
        for _ in range(2):
            with autograd.record():
                loss = net(mx.nd.full((1, 2), rank)).sum()
            loss.backward()
        trainer.step(1)
        net.collect_params().zero_grad()
    mean = sum(range(size)) / size
    assert net.weight.data().asnumpy() == pytest.approx(1 - 6 * mean)


@pytest.mark.parametrize("apart", [False, True], ids=["step", "allreduce_grads and update"])
def test_a_gradient_that_is_missing_on_some_ranks(apart: bool, two_ranks: None, rank: int, size: int) -> None:
    """It counts as zeros, or is an error on all ranks. A parameter without a gradient on all ranks is not updated."""
    nets = [gluon.nn.Dense(1, in_units=2, use_bias=False, prefix=f"missing{number}_") for number in range(3)]
    for net in nets:
        net.initialize(mx.init.One())
    parameters = [net.weight for net in nets]
    trainer = hvd.DistributedTrainer(parameters, "sgd", {"learning_rate": 1.0, "wd": 0.5})

    def step(**options: Any) -> None:
        if apart:
            trainer.allreduce_grads()
            trainer.update(1, **options)
        else:
            trainer.step(1, **options)

    def backward(used: list[Any]) -> None:
        with autograd.record():
            losses = [net(mx.nd.full((1, 2), rank + 1.0)).sum() for net in used]
        autograd.backward(losses)

    backward(nets)
    step()
    first = 0.5 - (size + 1) / 2
    backward(nets[:2] if rank == 0 else nets[1:2])
    step(ignore_stale_grad=True)
    expected = [first / 2 - 1 / size, first / 2 - (size + 1) / 2, first]
    assert [float(each.data().asnumpy()[0, 0]) for each in parameters] == pytest.approx(expected)

    backward(nets if rank == 0 else nets[1:])
    with pytest.raises(UserWarning) as caught:
        step()
    assert "missing0_weight" in str(caught.value)
    assert f"on ranks {list(range(1, size))}" in str(caught.value)
    assert len(set(hvd.allgather_object(str(caught.value)))) == 1
    assert [float(each.data().asnumpy()[0, 0]) for each in parameters] == pytest.approx(expected)


def test_two_trainers_in_one_step(rank: int, size: int) -> None:
    """Two models are trained in one step, as in adversarial training."""
    nets = [gluon.nn.Dense(1, in_units=2, use_bias=False) for _ in range(2)]
    for net in nets:
        net.initialize(mx.init.One())
    trainers = [hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 1.0}) for net in nets]
    with autograd.record():
        losses = [net(mx.nd.full((1, 2), rank + place)).sum() for place, net in enumerate(nets)]
    autograd.backward(losses)
    for trainer in trainers:
        trainer.step(1)
    for place, net in enumerate(nets):
        assert net.weight.data().asnumpy() == pytest.approx(1 - place - sum(range(size)) / size)


def test_process_set(two_ranks: None, rank: int, size: int) -> None:
    others = hvd.add_process_set(range(1, size))
    net = gluon.nn.Dense(1, in_units=2, use_bias=False)
    net.initialize(mx.init.One())
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 1.0}, process_set=others)
    with autograd.record():
        loss = net(mx.nd.full((1, 2), rank)).sum()
    loss.backward()
    trainer.step(1)
    mean = 0 if rank == 0 else np.mean(range(1, size))
    assert net.weight.data().asnumpy() == pytest.approx(1 - mean)
    hvd.remove_process_set(others)


def test_ranks_with_different_models(two_ranks: None, rank: int, size: int) -> None:
    net = gluon.nn.Dense(3 if rank else 2, in_units=2, prefix="different_")
    net.initialize()
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd")
    with autograd.record():
        loss = net(mx.nd.ones((1, 2))).sum()
    loss.backward()
    with pytest.raises(errors.DisagreementError, match=r"different_bias.* float32\[2\].* float32\[3\]"):
        trainer.step(1)


def test_mistakes(two_ranks: None) -> None:
    net = gluon.nn.Dense(1, in_units=2)
    net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    with pytest.raises(ValueError, match="2 devices"):
        hvd.DistributedTrainer(net.collect_params(), "sgd")
    net.collect_params().reset_ctx(mx.cpu(0))
    with pytest.raises(ValueError, match="number of groups"):
        hvd.DistributedTrainer(net.collect_params(), "sgd", num_groups=-1)
    with pytest.raises(ValueError, match="prefix"):
        hvd.DistributedTrainer(net.collect_params(), "sgd", prefix=3)  # type: ignore[arg-type]
    wrapped = hvd.DistributedOptimizer(mx.optimizer.SGD())
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedOptimizer(wrapped)
    with pytest.warns(UserWarning, match="DistributedOptimizer"):
        hvd.DistributedTrainer(net.collect_params(), wrapped)


# --- DistributedOptimizer --------------------------------------------------------------------------------------------


def make_symbol() -> Any:
    symbol = mx.sym.Variable("data")
    symbol = mx.sym.FullyConnected(mx.sym.flatten(symbol), num_hidden=16, name="fc1")
    symbol = mx.sym.FullyConnected(mx.sym.Activation(symbol, act_type="tanh"), num_hidden=3, name="fc2")
    return mx.sym.SoftmaxOutput(symbol, name="softmax")


def fit(images: Any, labels: Any, optimizer: Any, rows: int, **options: Any) -> list[Any]:
    data = mx.io.NDArrayIter(images.reshape(-1, *images.shape[2:]), labels.reshape(-1), rows)
    module = mx.mod.Module(make_symbol())
    module.bind(data.provide_data, data.provide_label)
    mx.random.seed(11)
    module.init_params(mx.init.Xavier())
    hvd.broadcast_parameters(module.get_params()[0])
    module.fit(data, num_epoch=1, optimizer=optimizer, **{"optimizer_params": {}, **options})
    return [array.asnumpy() for _, array in sorted(module.get_params()[0].items())]


@pytest.mark.parametrize("groups", [0, 2])
def test_module_with_distributed_optimizer(groups: int, rank: int, size: int) -> None:
    images, labels = batches(size)
    options = {"learning_rate": 0.1, "momentum": 0.9}
    plain = mx.optimizer.create("sgd", rescale_grad=1 / (ROWS * size), **options)
    expected = fit(images, labels, plain, ROWS * size, kvstore=None)
    mine = hvd.DistributedOptimizer(
        mx.optimizer.create("sgd", rescale_grad=1 / ROWS, **options), num_groups=groups, gradient_predivide_factor=2.0
    )
    actual = fit(own_rows(rank, images), own_rows(rank, labels), mine, ROWS, kvstore=None)
    assert_equal(actual, expected)


def test_attributes_are_those_of_the_wrapped_optimizer(rank: int, size: int) -> None:
    plain = mx.optimizer.SGD(learning_rate=0.5)
    wrapped = hvd.DistributedOptimizer(plain)
    assert isinstance(wrapped, mx.optimizer.Optimizer)
    wrapped.rescale_grad = 0.25
    wrapped.set_learning_rate(0.125)
    assert (plain.rescale_grad, plain.learning_rate, wrapped.learning_rate) == (0.25, 0.125, 0.125)
    assert type(pickle.loads(pickle.dumps(wrapped))) is mx.optimizer.SGD
    updater = mx.optimizer.get_updater(wrapped)
    weight = mx.nd.ones((2,))
    updater(0, mx.nd.full((2,), rank), weight)
    assert weight.asnumpy() == pytest.approx(1 - 0.125 * 0.25 * sum(range(size)) / size)
