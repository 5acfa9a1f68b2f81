"""hvd.shared with TensorFlow's tensors: one copy for the host."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import tensorflow as tf

import perseus_like.tensorflow as hvd

from ..shared_memory import MIB, in_total, shared_memory_bytes

NUMBERS = ["uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]


def test_one_rank_loads_and_all_have_equal_objects(rank: int) -> None:
    calls: list[int] = []

    def make() -> dict[str, Any]:
        calls.append(rank)
        return {
            "numbers": [tf.cast(tf.reshape(tf.range(6), (2, 3)), name) for name in NUMBERS],
            "complex": (tf.constant([1 + 2j], tf.complex64), tf.constant([[3 + 4j]], tf.complex128)),
            "scalar": tf.constant(2.5),
            "none": tf.zeros((0, 3)),
            "flags": tf.constant([True, False]),
            "words": tf.constant(["a", "bc"]),
            "array": np.arange(3),
        }

    found = hvd.shared(make, "collection")
    assert calls == ([0] if hvd.local_rank() == 0 else [])
    assert [each.dtype.name for each in found["numbers"]] == NUMBERS
    for each in found["numbers"]:
        assert tf.cast(each, tf.int32).numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert [each.numpy().tolist() for each in found["complex"]] == [[1 + 2j], [[3 + 4j]]]
    assert (found["scalar"].shape, float(found["scalar"])) == ((), 2.5)
    assert found["none"].shape == (0, 3)
    assert found["flags"].numpy().tolist() == [True, False]
    assert found["words"].numpy().tolist() == [b"a", b"bc"]
    assert found["array"].tolist() == [0, 1, 2]


def test_tensors_are_used_in_computations() -> None:
    table = hvd.shared(lambda: tf.reshape(tf.range(100_000.0), (1000, 100)), "table")
    rows = tf.function(lambda numbers: tf.nn.embedding_lookup(table, numbers))(tf.constant([3, 999]))
    assert rows[:, 1].numpy().tolist() == [301.0, 99_901.0]
    assert float(hvd.allreduce(table, op=hvd.Sum)[0, 1]) == hvd.size()
    weights = tf.Variable(tf.ones((1000, 100)))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weights * table)
    np.testing.assert_array_equal(tape.gradient(loss, weights).numpy(), table.numpy())
    weights.assign(table)  # copies, because a variable is written
    weights.assign_add(weights)
    assert float(table[0, 1]) == 1.0


def test_the_host_has_one_copy_and_it_is_freed_with_the_last_user() -> None:
    nbytes = 64 * MIB
    before = in_total(shared_memory_bytes())
    data = hvd.shared(lambda: tf.fill((nbytes // 4,), 7.0), "data")
    assert float(tf.reduce_sum(data[:: 1 << 10])) == 7.0 * (nbytes >> 12)
    hvd.barrier()
    with_data = in_total(shared_memory_bytes())
    assert nbytes <= with_data - before + MIB
    assert with_data - before <= 1.05 * nbytes
    del data
    gc.collect()
    assert in_total(shared_memory_bytes()) <= before + MIB


def test_a_variable_is_copied() -> None:
    found = hvd.shared(lambda: {"rate": tf.Variable(0.5)}, "variable")
    found["rate"].assign(1.0 + hvd.rank())
    hvd.barrier()
    assert float(found["rate"]) == 1.0 + hvd.rank()
