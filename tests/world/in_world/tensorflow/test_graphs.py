"""Tests of graphs with collectives: many at once, loops, sessions and saved models, and mistakes on one rank."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import perseus_like.tensorflow as hvd
from perseus_like.tensorflow.errors import translated

v1 = tf.compat.v1
MANY = 64


def test_many_collectives_are_in_progress_at_once(rank: int, size: int) -> None:
    """Ranks submit in different orders.

    If a collective had to wait for an earlier one, the ranks would wait forever.
    """
    order = list(range(MANY)) if rank % 2 == 0 else list(reversed(range(MANY)))

    def start_all() -> Any:
        results: dict[int, Any] = {}
        before = tf.constant(0.0)
        for number in order:
            # Each input is ready only after the collective before it has been submitted to the core.
            with tf.control_dependencies([before]):
                tensor = tf.fill([10], float(number + rank))
                before = tensor[0]
            results[number] = hvd.allreduce(tensor, op=hvd.Sum, name=f"many_{number}")
        return [results[number] for number in range(MANY)]

    results = tf.function(start_all)()
    total = size * (size - 1) / 2
    assert [float(result[0]) for result in results] == [number * size + total for number in range(MANY)]


def test_loops(rank: int, size: int) -> None:
    def dependent(tensor: Any) -> Any:
        for _ in tf.range(20):
            tensor = hvd.allreduce(tensor) + 1.0
        return tensor

    assert float(tf.function(dependent)(tf.constant(float(rank)))) == pytest.approx((size - 1) / 2 + 20)

    def independent(values: Any) -> Any:
        """Makes a loop whose iterations do not depend on one another."""
        return tf.map_fn(lambda value: hvd.allreduce(value, op=hvd.Sum), values, parallel_iterations=10)

    results = tf.function(independent)(tf.range(40.0) * (rank + 1))
    factor = size * (size + 1) / 2
    np.testing.assert_allclose(results, np.arange(40) * factor)


def slow_in_alternate_iterations(value: Any, number: Any, rank: int) -> Any:
    """Returns the value. In every other iteration this takes long, and in different iterations on different ranks."""

    def slowly() -> Any:
        zeros = tf.zeros([300, 300])
        return value + tf.reduce_sum(tf.matmul(zeros, zeros))

    return tf.cond(tf.equal(tf.cast(number, tf.int32) % 2, rank % 2), slowly, lambda: value)


@pytest.mark.parametrize("control_flow", ["v1", "v2"])
def test_iterations_of_loops_are_not_mixed_up(control_flow: str, rank: int, size: int) -> None:
    """Many iterations of one loop, and of nested loops, are in progress at the same time."""

    def reduce(value: Any, number: Any) -> Any:
        return hvd.allreduce(slow_in_alternate_iterations(value, number, rank), op=hvd.Sum)

    def nested_loop(outer: Any) -> Any:
        inner = tf.range(5.0)
        return tf.map_fn(lambda value: reduce(100.0 * outer + value, outer), inner, parallel_iterations=5)

    was_on = v1.control_flow_v2_enabled()
    (v1.disable_control_flow_v2 if control_flow == "v1" else v1.enable_control_flow_v2)()
    try:
        with tf.Graph().as_default(), v1.Session() as session:
            flat = tf.map_fn(lambda value: reduce(value, value), tf.range(80.0), parallel_iterations=60)
            nested = tf.map_fn(nested_loop, tf.range(12.0), parallel_iterations=12)
            flat_result, nested_result = session.run([flat, nested])
    finally:
        (v1.enable_control_flow_v2 if was_on else v1.disable_control_flow_v2)()
    np.testing.assert_array_equal(flat_result, np.arange(80) * size)
    np.testing.assert_array_equal(nested_result, (100 * np.arange(12)[:, None] + np.arange(5)) * size)


def test_conditions(rank: int, size: int) -> None:
    def choose(flag: Any) -> Any:
        if flag:
            result = hvd.allreduce(tf.constant([1.0]), op=hvd.Sum)
        else:
            result = hvd.broadcast(tf.constant([float(rank)]), size - 1)
        return result

    chosen = tf.function(choose)
    assert float(chosen(tf.constant(True))[0]) == size
    assert float(chosen(tf.constant(False))[0]) == size - 1


def test_a_function_that_is_inlined_twice(rank: int, size: int) -> None:
    """The graph then has two collectives."""
    inner = tf.function(lambda tensor: hvd.allreduce(tensor, op=hvd.Sum))
    one, two = tf.function(lambda: [inner(tf.constant([1.0])), inner(tf.constant([2.0]))])()
    assert [float(one[0]), float(two[0])] == [size, 2 * size]


def test_sessions(rank: int, size: int) -> None:
    with tf.Graph().as_default():
        tensor = v1.placeholder(tf.float32, [None, 2])
        results = [
            hvd.allreduce(tensor, op=hvd.Sum),
            hvd.allgather(tensor),
            hvd.broadcast(tensor, size - 1),
            *hvd.grouped_allreduce([tensor, tensor], op=hvd.Max),
            hvd.rank_op(),
        ]
        gradient = v1.gradients(tf.reduce_sum(results[0] * (rank + 1)), tensor)[0]
        loop = tf.while_loop(lambda i, _: i < 5, lambda i, x: (i + 1, hvd.allreduce(x)), [0, tensor])[1]
        with v1.Session() as session:
            for rows in (1, 3):  # the number of rows may change
                summed, gathered, received, *_, mine, slope, looped = session.run(
                    [*results, gradient, loop], {tensor: np.full((rows, 2), rank)}
                )
                assert summed[0, 0] == size * (size - 1) / 2
                assert gathered.shape == (rows * size, 2)
                assert received[0, 0] == size - 1
                assert mine == rank
                assert slope[0, 0] == size * (size + 1) / 2
                assert looped[0, 0] == (size - 1) / 2


@pytest.mark.parametrize("name", ["Allreduce", "Broadcast", "Allgather", "ReduceScatter", "Alltoall"])
def test_operations_have_the_names_that_saved_graphs_contain(name: str) -> None:
    from tensorflow.python.framework import op_def_registry

    assert op_def_registry.get(f"Perseus{name}") is not None


def test_a_saved_model(rank: int, size: int) -> None:
    base: Any = tf.Module

    class Model(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = tf.Variable(2.0)

        @tf.function(input_signature=[tf.TensorSpec([None])])  # type: ignore[untyped-decorator]
        def mean(self, tensor: Any) -> Any:
            return hvd.allreduce(self.weight * tensor)

    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(Model(), folder)
        loaded = tf.saved_model.load(folder)
    assert loaded.mean(tf.constant([float(rank), 1.0])).numpy().tolist() == [size - 1, 2]


DIFFERENCES = {
    "shape": "gradient 2, of Variable: rank 0 has float32[3], rank 1 has float32[4]; dtype and shape",
    "dtype": "rank 0 has gradient 1, of two, float64[3], rank 1 has gradient 2, of Variable, float32[3]; all ranks",
    "missing": "gradient 1, of two: rank 0 has float32[3], rank 1 has no gradient; all ranks",
    "sparse": "gradient 0, of one: rank 0 has float32[4,2], rank 1 has a sparse gradient; all ranks",
    "more": "rank 0 has gradient 2, of Variable, float32[3], rank 1 has gradient 3, of Variable, float32[7340032]; all",
}


@pytest.mark.parametrize("difference", DIFFERENCES)
@pytest.mark.parametrize("mode", ["eager", "graph", "compiled"])
def test_different_gradients_have_the_same_error_on_all_ranks(
    mode: str, difference: str, two_ranks: None, rank: int, size: int
) -> None:
    one, two = (
        tf.Variable(tf.ones([4, 2]), name="one"),
        tf.Variable(tf.ones([3], "float64" if difference == "dtype" else "float32"), name="two"),
    )
    others = [tf.Variable(tf.ones([3 + (rank == 1 and difference == "shape")]))]
    if rank == 1 and difference == "dtype":
        two = tf.Variable(tf.ones([3]), name="two")
    if rank == 1 and difference == "more":
        others.append(tf.Variable(tf.ones([7 << 20])))
    weights = [one, two, *others]

    def differentiate() -> Any:
        with tf.GradientTape() as tape:
            parts = [tf.reduce_sum(tf.cast(weight, tf.float32)) for weight in weights]
            if rank == 1 and difference == "missing":
                parts.pop(1)
            if rank == 1 and difference == "sparse":
                parts[0] = tf.reduce_sum(tf.gather(one, [0]))
            loss = tf.add_n(parts)
        return hvd.DistributedGradientTape(tape).gradient(loss, weights)

    run = differentiate if mode == "eager" else tf.function(differentiate, jit_compile=mode == "compiled")
    with pytest.raises((RuntimeError, tf.errors.OpError)) as caught:
        run()
    text = str(translated(caught.value) or caught.value)
    others_have = "rank 0 has" if size == 2 else f"ranks 0, {', '.join(map(str, range(2, size)))} have"
    assert DIFFERENCES[difference].replace("rank 0 has", others_have) in text
    assert len(set(hvd.allgather_object(text))) == 1
    assert hvd.allreduce(tf.ones([2])).numpy().tolist() == [1, 1]


def test_a_gradient_that_is_missing_everywhere(rank: int, size: int) -> None:
    used, unused = tf.Variable(1.0), tf.Variable(1.0)
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = used * (rank + 1)
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, [used, unused])
        assert float(gradients[0]) == (size + 1) / 2
        assert gradients[1] is None


def test_collectives_of_torch_in_the_same_process(rank: int, size: int) -> None:
    torch = pytest.importorskip("torch")
    from perseus_like import torch as of_torch

    step = tf.function(lambda tensor: hvd.allreduce(tensor, op=hvd.Sum))
    for number in range(10):
        one = of_torch.allreduce(torch.full((1000,), float(rank + number)), op=of_torch.Sum)
        two = step(tf.fill([1000], float(rank + number)))
        handle = of_torch.allreduce_async(torch.full((3,), 1.0), op=of_torch.Sum, name="beside")
        three = step(tf.fill([1000], 1.0))
        expected = size * number + size * (size - 1) / 2
        assert float(one[0]) == float(two[0]) == expected
        assert float(three[0]) == float(of_torch.synchronize(handle)[0]) == size
