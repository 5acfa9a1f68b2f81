"""Checks that TensorFlow's tapes and optimizers train on all ranks as one process trains on all the data."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import perseus_like.numpy as plain
import perseus_like.tensorflow as hvd

v1 = tf.compat.v1
STEPS, ROWS, WIDTH = 20, 4, 5
Arrays = list[Any]


def start_weights() -> Arrays:
    random = np.random.default_rng(3)
    shapes = [(WIDTH, 8), (8,), (8, 2), (2,)]
    return [random.standard_normal(shape).astype(np.float32) * 0.3 for shape in shapes]


def batches(size: int, rank: int | None = None) -> list[tuple[Any, Any]]:
    """Returns the batches of one rank, or of all ranks together."""
    random = np.random.default_rng(4)
    found = []
    for _ in range(STEPS):
        inputs = random.standard_normal((size, ROWS, WIDTH)).astype(np.float32)
        targets = random.standard_normal((size, ROWS, 2)).astype(np.float32)
        whole = (inputs.reshape(-1, WIDTH), targets.reshape(-1, 2))
        found.append(whole if rank is None else (inputs[rank], targets[rank]))
    return found


def loss_of(weights: Any, inputs: Any, targets: Any) -> Any:
    hidden = tf.tanh(tf.matmul(inputs, weights[0]) + weights[1])
    return tf.reduce_mean(tf.square(tf.matmul(hidden, weights[2]) + weights[3] - targets))


def train_alone(size: int) -> Arrays:
    weights = [tf.Variable(weight) for weight in start_weights()]
    for inputs, targets in batches(size):
        with tf.GradientTape() as tape:
            loss = loss_of(weights, inputs, targets)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * gradient)
    return [weight.numpy() for weight in weights]


def assert_same_weights(actual: Any, expected: Arrays) -> None:
    for mine, wanted in zip(actual, expected, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=0, atol=1e-5)


def train_with_tape(rank: int, size: int, decorate: Callable[..., Any], **options: Any) -> Arrays:
    weights = [tf.Variable(weight + rank) for weight in start_weights()]  # rank 0's weights are used
    hvd.broadcast_variables(weights, root_rank=0)

    def step(inputs: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(weights, inputs, targets)
        gradients = hvd.DistributedGradientTape(tape, **options).gradient(loss, weights)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    step = decorate(step)
    for inputs, targets in batches(size, rank):
        step(tf.constant(inputs), tf.constant(targets))
    return [weight.numpy() for weight in weights]


@pytest.mark.parametrize("mode", ["eager", "graph", "compiled"])
def test_a_tape_trains_like_one_process(mode: str, rank: int, size: int) -> None:
    decorate = {
        "eager": lambda step: step,
        "graph": tf.function,
        "compiled": lambda step: tf.function(step, jit_compile=True),
    }[mode]
    assert_same_weights(train_with_tape(rank, size, decorate), train_alone(size))


@pytest.mark.parametrize(
    "options",
    [
        {"groups": 2},
        {"num_groups": 2},
        {"gradient_predivide_factor": 4.0},
        {"compression": hvd.Compression.none, "sparse_as_dense": True, "process_set": hvd.global_process_set},
    ],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.filterwarnings("ignore:num_groups")
def test_options_of_the_tape(options: dict[str, Any], rank: int, size: int) -> None:
    assert_same_weights(train_with_tape(rank, size, tf.function, **options), train_alone(size))


def test_compressed_gradients_are_nearly_the_same(rank: int, size: int) -> None:
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        weights = train_with_tape(rank, size, tf.function, compression=compression)
        for mine, wanted in zip(weights, train_alone(size), strict=True):
            np.testing.assert_allclose(mine, wanted, rtol=0, atol=0.05)


def train_in_a_session(rank: int, size: int, make: Callable[[Any], Any], hook: bool) -> Arrays:
    """Trains like a program for TensorFlow 1. Without `hook`, each step has two passes, each with half of the data."""
    with tf.Graph().as_default():
        weights = [v1.Variable(weight + rank, use_resource=True) for weight in start_weights()]
        inputs, targets = v1.placeholder(tf.float32, [None, WIDTH]), v1.placeholder(tf.float32, [None, 2])
        step = v1.train.get_or_create_global_step()
        optimizer = make(v1.train.GradientDescentOptimizer(0.1))
        train = optimizer.minimize(loss_of(weights, inputs, targets), global_step=step)
        if hook:
            hooks = [hvd.BroadcastGlobalVariablesHook(0)]
            with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
                for mine, wanted in batches(size, rank):
                    session.run(train, {inputs: mine, targets: wanted})
                return list(session.run(weights))
        broadcast = hvd.broadcast_global_variables(0)
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            session.run(broadcast)
            for mine, wanted in batches(size, rank):
                half = ROWS // 2
                session.run(train, {inputs: mine[:half], targets: wanted[:half]})
                session.run(train, {inputs: mine[half:], targets: wanted[half:]})
            assert session.run(step) == 2 * STEPS
            return list(session.run(weights))


def test_tapes_and_optimizers_keep_their_attributes_when_garbage_is_collected(rank: int, size: int) -> None:
    """CPython 3.13.0 clears attributes if two objects share the dictionary that one of them was made with."""
    weight, inner = tf.Variable([rank + 1.0]), tf.GradientTape()
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
    with hvd.DistributedGradientTape(inner) as tape:
        gc.collect()
        loss = tf.reduce_sum(weight * weight)
    assert tape.gradient(loss, [weight])[0].numpy() == [size + 1]
    ((reduced, _),) = optimizer.compute_gradients(lambda: weight * weight, [weight])
    assert reduced.numpy() == [size + 1]


def test_a_monitored_session_trains_like_one_process(rank: int, size: int) -> None:
    assert_same_weights(train_in_a_session(rank, size, hvd.DistributedOptimizer, hook=True), train_alone(size))


def test_passes_of_a_session_are_summed(rank: int, size: int) -> None:
    def make(optimizer: Any) -> Any:
        return hvd.DistributedOptimizer(optimizer, backward_passes_per_step=2, average_aggregated_gradients=True)

    assert_same_weights(train_in_a_session(rank, size, make, hook=False), train_alone(size))


@pytest.mark.parametrize("passes", [1, 2])
def test_apply_gradients_with_keyword_and_iterator(passes: int, rank: int, size: int) -> None:
    """The pairs are passed by keyword, as an iterator that can be read only once."""
    with tf.Graph().as_default(), v1.Session() as session:
        weight = v1.Variable(tf.zeros([1]), use_resource=True)
        step = v1.train.get_or_create_global_step()
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=passes)
        pairs = optimizer.compute_gradients((rank + 1.0) * tf.reduce_sum(weight))
        train = optimizer.apply_gradients(grads_and_vars=iter(pairs), global_step=step)
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        for done in range(1, 5):
            session.run(train)
            assert session.run(step) == done
            assert session.run(weight).tolist() == [-(size + 1) / 2 * (done // passes * passes)]


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_passes_without_a_gradient_and_lists_of_variables_in_turn(mode: str, rank: int, size: int) -> None:
    """Each list counts its own passes. A gradient that is None in the last pass is applied, and added once."""

    def reduce(gradients: list[Any], variables: list[Any]) -> list[Any]:
        return [None if each is None else hvd.allreduce(each, name=f"pass.{n}") for n, each in enumerate(gradients)]

    helper = hvd.LocalGradientAggregationHelper(2, reduce, False, False, 0, None)
    first, second = [tf.Variable([0.0]), tf.Variable([0.0])], [tf.Variable([0.0])]

    def one_pass(gradients: list[float | None], variables: list[Any]) -> None:
        given = [None if each is None else tf.constant([each]) for each in gradients]
        pairs = list(zip(helper.compute_gradients(given, variables), variables, strict=True))

        def apply() -> Any:
            moved = [variable.assign_sub(each) for each, variable in pairs if each is not None]
            return tf.group(*moved)

        helper.apply_gradients(apply, None, pairs)

    def pass_of_first(gradients: list[float | None]) -> None:
        one_pass(gradients, first)

    def pass_of_second(gradients: list[float | None]) -> None:
        one_pass(gradients, second)

    decorate = tf.function if mode == "graph" else lambda function: function
    run_first, run_second = decorate(pass_of_first), decorate(pass_of_second)
    for step in range(1, 3):
        run_first([1.0 + rank, 5.0])
        run_second([10.0 + rank])
        moved = np.array([size + 1, 5, size + 19])
        assert [float(each[0]) for each in (*first, *second)] == (-(step - 1) * moved).tolist()
        run_first([1.0 + rank, None])
        run_second([10.0 + rank])
        assert [float(each[0]) for each in (*first, *second)] == (-step * moved).tolist()


@pytest.mark.parametrize("mode", ["eager", "session"])
def test_a_failure_between_the_passes_of_a_step(mode: str, rank: int) -> None:
    """The weight equals that of a training without a failure, at each place and with commits within a step, too."""

    def trained(commit_every: int, fails_at: int = -1) -> float:
        with contextlib.ExitStack() as contexts:
            session = None
            if mode == "session":
                contexts.enter_context(tf.Graph().as_default())
                session = contexts.enter_context(v1.Session())
            weight = v1.Variable(0.0, use_resource=True) if session else tf.Variable(0.0)
            optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2)
            if session:
                factor = v1.placeholder(tf.float32, [])
                train_op = optimizer.apply_gradients(optimizer.compute_gradients(factor * weight, [weight]))
                session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])

            def make_pass(value: float) -> None:
                if session:
                    session.run(train_op, {factor: value})
                else:
                    optimizer.apply_gradients(optimizer.compute_gradients(lambda: value * weight, [weight]))

            state, left = hvd.elastic.TensorFlowState([weight], session, done=0), [fails_at]

            @hvd.elastic.run
            def train(state: Any) -> None:
                while state.done < 6:
                    make_pass(1.0 + rank + 10 * state.done)
                    if left == [state.done]:
                        left.clear()
                        plain.allreduce(np.ones(2 + plain.rank()), name="fault")
                    state.done += 1
                    if state.done % commit_every == 0:
                        state.commit()

            train(state)
            return float(session.run(weight) if session else weight.numpy())

    expected = trained(9)
    for fails_at in range(6):
        assert trained(1 + fails_at % 3, fails_at) == pytest.approx(expected), fails_at


def test_the_optimizer_keeps_its_class_and_state() -> None:
    with tf.Graph().as_default():
        plain = v1.train.MomentumOptimizer(0.1, 0.9)
        optimizer = hvd.DistributedOptimizer(plain)
        assert isinstance(optimizer, v1.train.MomentumOptimizer)
        weight = v1.Variable([1.0], use_resource=True)
        optimizer.minimize(tf.reduce_sum(weight * weight), var_list=[weight])
        assert optimizer.get_slot_names() == ["momentum"]
        assert plain.get_slot(weight, "momentum") is optimizer.get_slot(weight, "momentum")
        assert optimizer.variables() == plain.variables()
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedOptimizer(optimizer)
    with pytest.raises(ValueError, match="optimizer of"):
        hvd.DistributedOptimizer("sgd")
    with pytest.raises(ValueError, match="gradient_predivide_factor"):
        hvd.DistributedOptimizer(plain, op=hvd.Sum, gradient_predivide_factor=2.0)


def test_adasum_of_steps(rank: int, size: int) -> None:
    """Parallel steps are averaged, and orthogonal steps are added."""
    with tf.Graph().as_default():
        weight = v1.Variable(np.zeros(8), use_resource=True)
        mine = tf.one_hot(rank, 8, dtype=tf.float64)
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), op=hvd.Adasum)
        train = optimizer.apply_gradients([(mine, weight)])
        same = optimizer.apply_gradients([(tf.ones([8], tf.float64), weight)])
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(train)
            expected = np.where(np.arange(8) < size, -1.0, 0.0)
            np.testing.assert_allclose(session.run(weight), expected, atol=1e-12)
            session.run(same)
            np.testing.assert_allclose(session.run(weight), expected - 1, atol=1e-12)


@pytest.mark.parametrize("decorate", [lambda step: step, tf.function], ids=["eager", "graph"])
def test_a_tape_keeps_structure_and_missing_gradients(decorate: Any, rank: int, size: int) -> None:
    one, two, unused = tf.Variable(1.0), tf.Variable([2.0, 3.0]), tf.Variable(4.0)
    table = tf.Variable(tf.ones([4, 2]))

    def differentiate() -> Any:
        with tf.GradientTape(persistent=True) as plain:
            loss = (rank + 1) * (one * one + tf.reduce_sum(two) + tf.reduce_sum(tf.gather(table, [rank])))
        tape = hvd.DistributedGradientTape(plain)
        nested = tape.gradient(loss, {"a": one, "b": [two, (unused, table)]})
        single = tape.gradient(loss, one)
        zeros = tape.gradient(loss, unused, unconnected_gradients="zero")
        assert nested["b"][1][0] is None
        assert isinstance(nested["b"][1][1], tf.IndexedSlices)
        return nested["a"], nested["b"][0], single, zeros, tf.convert_to_tensor(nested["b"][1][1])

    mean = (size + 1) / 2
    first, second, single, zeros, sparse = decorate(differentiate)()
    assert float(first) == float(single) == 2 * mean
    assert second.numpy().tolist() == [mean, mean]
    assert float(zeros) == 0
    expected = np.zeros((4, 2))
    for r in range(size):
        expected[r] = (r + 1) / size
    np.testing.assert_allclose(sparse, expected)


def test_local_sources(rank: int, size: int) -> None:
    shared, local = tf.Variable(1.0), tf.Variable(1.0)

    def tape_of(**options: Any) -> tuple[Any, Any]:
        with tf.GradientTape(persistent=True) as plain:
            loss = (rank + 1) * (shared + local)
        return hvd.DistributedGradientTape(plain, **options), loss

    tape, loss = tape_of()
    tape.register_local_source(local)
    assert [float(each) for each in tape.gradient(loss, [shared, local])] == [(size + 1) / 2, (rank + 1) / size]
    of_local, of_shared = tape.get_local_and_global_gradients(loss, [shared, local])
    assert [source is local for source, _ in of_local] == [True]
    assert [float(gradient) for _, gradient in of_shared] == [(size + 1) / 2]
    tape, loss = tape_of(scale_local_gradients=False)
    tape.register_local_source(local)
    assert float(tape.gradient(loss, local)) == rank + 1

    class Layer:
        trainable_weights = (local,)

    with tf.GradientTape() as plain:
        loss = (rank + 1) * (shared + local)
    partial = hvd.PartialDistributedGradientTape(plain, local_layers=Layer())
    assert float(partial.gradient(loss, [local])[0]) == (rank + 1) / size
    with pytest.raises(ValueError, match="local_layers"):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[1])


def test_a_tape_of_a_process_set(rank: int, size: int) -> None:
    even = hvd.add_process_set(range(0, size, 2))
    weight = tf.Variable(0.0)
    with tf.GradientTape() as plain:
        loss = rank * weight
    gradient = hvd.DistributedGradientTape(plain, process_set=even).gradient(loss, weight)
    ranks = list(range(0, size, 2))
    assert float(gradient) == (sum(ranks) / len(ranks) if rank in ranks else rank)
    assert hvd.remove_process_set(even)


def test_variables_that_are_added_between_steps(rank: int, size: int) -> None:
    """A new tape for each step reduces the gradients of all variables of this step."""
    weights = [tf.Variable(1.0)]
    for step in range(3):
        with tf.GradientTape() as plain:
            loss = (rank + 1) * tf.add_n([weight * weight for weight in weights])
        gradients = hvd.DistributedGradientTape(plain).gradient(loss, weights)
        assert [float(each) for each in gradients] == [size + 1.0] * (step + 1)
        weights.append(tf.Variable(1.0))
