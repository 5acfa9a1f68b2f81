"""TensorFlow where something is not as it should be: a peer dies, or a private part of TensorFlow is another."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="no TensorFlow")

SLOW_WAY = """
    import logging
    import tensorflow as tf
    import perseus_like.tensorflow as tvd
    from perseus_like.tensorflow import native

    records = []
    class Keep(logging.Handler):
        def emit(self, record):
            records.append(record.getMessage())
    logging.getLogger("perseus_like").addHandler(Keep())
    native.library.perseus_tensorflow_distrust_done(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    tvd.init()
    rank, size = tvd.rank(), tvd.size()

    def reduce_all():
        return [tvd.allreduce(tf.fill([3], float(i + rank)), op=tvd.Sum) for i in range(32)]

    expected = [float(i * size + 1) for i in range(32)]
    for _ in range(2):
        assert [float(each[0]) for each in tf.function(reduce_all)()] == expected
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        assert [float(each[0]) for each in session.run(reduce_all())] == expected
    assert float(tvd.allreduce(tf.ones([1]))[0]) == 1
    tell(len(records), "one after the other" in records[0])
"""

DEATH = """
    import tensorflow as tf
    import perseus_like.tensorflow as tvd

    tvd.init()
    weights = [tf.Variable(tf.ones([100, 100])) for _ in range(3)]

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(weight * weight) for weight in weights])
        for weight, gradient in zip(weights, tvd.DistributedGradientTape(tape).gradient(loss, weights)):
            weight.assign_sub(0.1 * gradient)

    step()
    if tvd.rank() == 1:
        os._exit(3)
    began = time.monotonic()
    try:
        while True:
            step()
    except tf.errors.OpError as error:
        tell(type(error).__name__, "HorovodInternalError (peer_lost)" in str(error), "rank 1" in str(error))
        tell("in time" if time.monotonic() - began < 20 else "late")
"""


def test_one_after_the_other_where_tensorflow_is_another(
    ranks: Callable[..., object], told: Callable[[int], str]
) -> None:
    world = ranks(2, SLOW_WAY, seconds=120)
    assert [told(rank) for rank in range(2)] == ["1 True\n"] * 2, world


def test_a_dead_peer_ends_a_step(ranks: Callable[..., object], told: Callable[[int], str]) -> None:
    world = ranks(2, DEATH, seconds=120)
    assert told(0) == "UnknownError True True\nin time\n", world
