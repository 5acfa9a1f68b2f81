"""Tests of programs for Horovod's Keras API: private names of Keras 2, and differences under Keras 3."""

from __future__ import annotations

from typing import Any

import keras
import pytest

if keras.backend.backend() != "tensorflow":
    pytest.skip("Horovod's Keras API is TensorFlow's", allow_module_level=True)

import tensorflow as tf

import perseus_like.tensorflow as tf_hvd
import perseus_like.tensorflow.keras as hvd

KERAS_2 = keras.__version__.startswith("2.")
only_keras_2 = pytest.mark.skipif(not KERAS_2, reason="optimizers of Keras 3 compute no gradients")
only_keras_3 = pytest.mark.skipif(KERAS_2, reason="Keras 2 runs programs for Horovod unchanged")


def optimizers(**options: Any) -> list[Any]:
    """Returns a DistributedOptimizer of each kind that Keras 2 has."""
    classes = [tf.keras.optimizers.SGD, tf.keras.optimizers.legacy.SGD]
    return [hvd.DistributedOptimizer(cls(learning_rate=1.0), **options) for cls in classes]


@only_keras_2
@pytest.mark.parametrize("method", ["_compute_gradients", "compute_gradients"])
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_computed_gradients_are_reduced_once(method: str, op: int, rank: int, size: int) -> None:
    expected = sum(range(size)) / (size if op == hvd.Average else 1)
    for optimizer in optimizers(op=op):
        variable = tf.Variable(0.0)
        for step in range(1, 3):
            with tf.GradientTape() as tape:
                loss = variable * rank
            ((gradient, of),) = getattr(optimizer, method)(loss, [variable], tape=tape)
            assert (float(gradient), of is variable) == (expected, True)
            optimizer.apply_gradients([(gradient * 2, variable)])  # changed by the program, as by clipping
            assert float(variable) == -2 * step * expected
        # Gradients that the program's own tape computed are reduced when they are applied.
        optimizer.apply_gradients([(tf.constant(float(rank)), variable)])
        assert float(variable) == -5 * expected


@only_keras_2
def test_gradients_computed_in_a_function_are_reduced_once(rank: int, size: int) -> None:
    """The code of `compute_gradients` runs once, at the trace. `apply_gradients` runs eagerly at each step."""
    expected = sum(range(size))
    for optimizer in optimizers(op=hvd.Sum):
        variable = tf.Variable(0.0)

        @tf.function  # type: ignore[untyped-decorator]
        def compute(optimizer: Any = optimizer, variable: Any = variable) -> Any:
            with tf.GradientTape() as tape:
                loss = variable * rank
            return optimizer.compute_gradients(loss, [variable], tape=tape)[0][0]

        for step in range(1, 4):
            gradient = compute()
            assert float(gradient) == expected
            optimizer.apply_gradients([(gradient, variable)])
            assert float(variable) == -step * expected
        # Gradients that the program's own tape computed are reduced when they are applied.
        optimizer.apply_gradients([(tf.constant(float(rank)), variable)])
        assert float(variable) == -4 * expected


@only_keras_2
def test_steps_in_a_function_do_not_mark_later_gradients_as_reduced(rank: int, size: int) -> None:
    """After a function that computes and applies gradients, gradients of the program's own tape are reduced."""
    expected = sum(range(size))
    for optimizer in optimizers(op=hvd.Sum):
        variable = tf.Variable(0.0)

        @tf.function  # type: ignore[untyped-decorator]
        def step(optimizer: Any = optimizer, variable: Any = variable) -> None:
            with tf.GradientTape() as tape:
                loss = variable * rank
            optimizer.apply_gradients(optimizer.compute_gradients(loss, [variable], tape=tape))

        for steps in range(2):
            step()
            assert float(variable) == -(2 * steps + 1) * expected
            optimizer.apply_gradients([(tf.constant(float(rank)), variable)])
            assert float(variable) == -(2 * steps + 2) * expected


@only_keras_2
@pytest.mark.parametrize("further", [{}, {"experimental_aggregate_gradients": False}])
def test_computed_gradients_are_summed_over_passes(further: dict[str, bool], rank: int, size: int) -> None:
    """Gradients are aggregated with every aggregation setting of Keras itself, as in Horovod."""
    for optimizer in optimizers(op=hvd.Average, backward_passes_per_step=2):
        variables = [[tf.Variable(0.0)], [tf.Variable(0.0)]] if "legacy" in type(optimizer).__module__ else None
        flat = tf.nest.flatten(variables) if variables else [tf.Variable(0.0), tf.Variable(0.0)]
        optimizer.register_local_var(flat[1])

        @tf.function  # type: ignore[untyped-decorator]
        def step(optimizer: Any = optimizer, given: Any = variables or flat, flat: Any = flat) -> None:
            pairs = optimizer._compute_gradients(lambda: (flat[0] + flat[1]) * rank, given, None)
            optimizer.apply_gradients(pairs, **further)

        for passes in range(1, 4):
            step()
            steps = passes // 2
            assert float(flat[0]) == -2 * steps * sum(range(size)) / size
            assert float(flat[1]) == -2 * steps * rank / size
            assert int(optimizer.iterations) == passes
            assert int(optimizer._agg_helper.counter) == passes % 2


def minimized(optimizer: Any, rank: int) -> float:
    """Returns a variable that is 0 at first, after one step in a tf.function. Each rank's gradient is its rank."""
    variable = tf.Variable(0.0)

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> None:
        optimizer.minimize(lambda: variable * rank, [variable])

    step()
    return float(variable)


@only_keras_2
def test_minimize_reduces_once(rank: int, size: int) -> None:
    for optimizer in optimizers(op=hvd.Sum):
        assert minimized(optimizer, rank) == -sum(range(size))


@only_keras_2
@pytest.mark.parametrize("legacy", [False, True])
def test_minimize_reduces_once_with_loss_scaling(legacy: bool, rank: int, size: int) -> None:
    cls = tf.keras.optimizers.legacy.SGD if legacy else tf.keras.optimizers.SGD
    scaling = keras.mixed_precision.LossScaleOptimizer
    inside = scaling(hvd.DistributedOptimizer(cls(learning_rate=1.0), op=hvd.Sum))
    outside = hvd.DistributedOptimizer(scaling(cls(learning_rate=1.0)), op=hvd.Sum)
    assert minimized(inside, rank) == minimized(outside, rank) == -sum(range(size))


def test_the_helper_counts_backward_passes(rank: int, size: int) -> None:
    assert hvd.DistributedOptimizer(tf.keras.optimizers.SGD())._agg_helper is None
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(learning_rate=1.0), backward_passes_per_step=2)
    variable = keras.Variable(0.0) if hasattr(keras, "Variable") else tf.Variable(0.0)
    for passes in range(1, 4):
        optimizer.apply_gradients([(tf.constant(float(rank)), variable)])
        assert int(optimizer._agg_helper.counter) == passes % 2


def model() -> Any:
    return keras.Sequential([keras.layers.InputLayer((4,)), keras.layers.Dense(3, activation="softmax")])


DATA, TARGETS = tf.ones([8, 4]), tf.ones([8, 1], tf.int64)


@only_keras_3
def test_synthetic_benchmark_of_a_tape(rank: int) -> None:
    network, optimizer = model(), tf.optimizers.SGD(0.01)

    @tf.function  # type: ignore[untyped-decorator]
    def step(first_batch: bool) -> None:
        with tf.GradientTape() as tape:
            loss = tf.losses.sparse_categorical_crossentropy(TARGETS, network(DATA, training=True))
        tape = tf_hvd.DistributedGradientTape(tape, compression=tf_hvd.Compression.fp16)
        gradients = tape.gradient(loss, network.trainable_variables)
        optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))
        if first_batch:
            tf_hvd.broadcast_variables(network.variables, root_rank=0)
            tf_hvd.broadcast_variables(optimizer.variables, root_rank=0)

    step(True)
    step(False)
    sums = tf_hvd.allgather_object([float(tf.reduce_sum(variable)) for variable in network.variables])
    assert all(each == sums[0] for each in sums)
    with pytest.raises(TypeError):
        optimizer.variables()


@only_keras_3
def test_synthetic_benchmark_of_keras(rank: int) -> None:
    network, optimizer = model(), hvd.DistributedOptimizer(tf.optimizers.SGD(0.01))
    loss = tf.losses.SparseCategoricalCrossentropy()
    with pytest.raises(TypeError, match="experimental_run_tf_function"):
        network.compile(loss=loss, optimizer=optimizer, experimental_run_tf_function=False)
    network.compile(loss=loss, optimizer=optimizer)
    network.fit(DATA, TARGETS, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)], verbose=0)
    sums = tf_hvd.allgather_object([float(tf.reduce_sum(variable)) for variable in network.variables])
    assert all(each == sums[0] for each in sums)
