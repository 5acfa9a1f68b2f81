"""Tests of functions for XLA beside other functions: nested, called several times, in loops, and differentiated."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

import perseus_like.tensorflow as hvd


def total(tensor: Any) -> Any:
    return hvd.allreduce(tensor, op=hvd.Sum)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0 0 0 1 0 0 1 1 -1 0",
        "0 0 0 1 0 0 1 1 -1 0 -1 name",
        "0 0 0 1 0 0 1 1 -1 0 1000000 name",
        "0 0 0 1 0 0 1 1 -1 0 99999999999999999999 name",
        "0 0 0 1 0 0 1 1 -1 0 1 7 4 -1 1 name",
        "0 0 0 1 0 0 1 1 -1 0 1 7 4 18446744073709551615 1 name",
        "0 0 0 1 0 0 1 1 -1 0 1 7 4 1 -1 name",
        "0 0 0 1 0 0 1 1 -1 0 1 7 -4 1 1 name",
        "0 0 0 1 0 0 1 1 -1 0 1 77 4 1 1 name",
        "0 0 0 1 0 0 1 1 -1 0 0 name",
        "6 0 0 1 0 0 1 1 -1 0 1 7 4 1 1 name",
        "-1 0 0 1 0 0 1 1 -1 0 0 name",
        "99 0 0 1 0 0 1 1 -1 0 1 7 4 1 1 name",
    ],
)
def test_a_wrong_text_of_a_compiled_collective_is_an_error(size: int, text: str) -> None:
    """A graph from a file may have any text in place of this library's text."""
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    @tf.function(jit_compile=True)  # type: ignore[untyped-decorator]
    def call() -> Any:
        total(tf.constant([1.0]))  # registers the custom call with XLA
        return gen_xla_ops.xla_custom_call_v2(
            [tf.constant([1.0]), tf.zeros([], tf.float32)],
            call_target_name="perseus_collective",
            backend_config=text,
            has_side_effect=True,
            result_dtypes=[tf.float32, tf.float32],
            result_shapes=[[1], []],
        )

    with pytest.raises(Exception, match="the text of a compiled collective makes no sense"):
        call()
    assert float(tf.function(total, jit_compile=True)(tf.constant([1.0]))[0]) == size


def test_a_function_inside_and_outside_of_a_compiled_one(size: int) -> None:
    """The function is traced for XLA and for TensorFlow, in either order."""
    first_outside, first_inside = tf.function(total), tf.function(total)
    one = tf.constant([1.0])
    assert float(first_outside(one)[0]) == size

    def both(tensor: Any) -> Any:
        return first_outside(tensor) + 2.0 * first_inside(tensor)

    assert float(tf.function(both, jit_compile=True)(one)[0]) == 3 * size
    assert float(first_inside(one)[0]) == size


def test_calls_of_a_compiled_function_run_one_after_the_other(size: int) -> None:
    """All calls use the same names, so ranks would mix up calls that run at the same time."""
    compiled = tf.function(total, jit_compile=True)

    def several() -> list[Any]:
        return [compiled(tf.constant([float(number)])) for number in range(8)]

    assert [float(each[0]) for each in tf.function(several)()] == [float(number * size) for number in range(8)]

    def in_a_loop(values: Any) -> Any:
        return tf.map_fn(compiled, values, parallel_iterations=20)

    assert tf.function(in_a_loop)(tf.range(30.0)).numpy().tolist() == [float(number * size) for number in range(30)]


def test_a_gradient_of_a_compiled_function(rank: int, size: int) -> None:
    compiled = tf.function(total, jit_compile=True)

    def differentiate(tensor: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(tensor)
            loss = tf.reduce_sum(compiled(tensor) * (rank + 1.0))
        return tape.gradient(loss, tensor)

    for each in (differentiate, tf.function(differentiate)):
        assert each(tf.constant([1.0, 2.0])).numpy().tolist() == [size * (size + 1) / 2] * 2


def test_compiled_barriers_joins_and_numbers(rank: int, size: int) -> None:
    def communicate(tensor: Any) -> Any:
        hvd.barrier()
        for _ in tf.range(3):
            tensor = hvd.allreduce(tensor) + 1.0
        hvd.barrier()
        return tensor, hvd.join(), hvd.rank_op(), hvd.size_op()

    mean, last, *numbers = tf.function(communicate, jit_compile=True)(tf.constant([float(rank)]))
    assert float(mean[0]) == (size - 1) / 2 + 3
    assert int(last) in range(size)
    assert [int(each) for each in numbers] == [rank, size]


def test_different_numbers_of_rows_are_an_error_on_all_ranks(two_ranks: None, rank: int, size: int) -> None:
    gather = tf.function(hvd.allgather, jit_compile=True)
    with pytest.raises(tf.errors.OpError, match="ranks must give equally many rows"):
        gather(tf.ones([2 + rank]))
    assert gather(tf.ones([2])).shape == (2 * size,)
