"""Tests of TensorFlow if a peer dies, or if a private part of TensorFlow has changed."""

from __future__ import annotations

import importlib.util

import pytest

from tests.job import PATIENT_LAUNCHER

from .conftest import Ranks

pytestmark = pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="no TensorFlow")

HEAD = """
    import logging
    import importlib
    import tensorflow as tf

    records = []
    class Keep(logging.Handler):
        def emit(self, record):
            records.append(record.getMessage())
    logging.getLogger("perseus_like").addHandler(Keep())

    def hide(module):
        importlib.import_module(module)
        package, _, name = module.rpartition(".")
        vars(sys.modules[package]).pop(name, None)
        sys.modules[module] = None  # TensorFlow keeps its own reference to the module
"""

# Each entry is a change of TensorFlow's private parts, and the texts of the log lines about it.
CHANGES = {
    "native": (
        """
    native.library.perseus_tensorflow_distrust_done(1)
    native.library.perseus_tensorflow_start_xla = lambda: b'no symbols'
""",
        ["one after the other", "no symbols"],
    ),
    "python": (
        """
    hide("tensorflow.python.framework.auto_control_deps")
    hide("tensorflow.python.ops.control_flow_util")
""",
        ["cannot be seen", "one after the other"],
    ),
}

FALLBACKS = """
    import perseus_like.tensorflow as tvd
    from perseus_like.tensorflow import native
    {change}
    tf.config.threading.set_inter_op_parallelism_threads(2)
    tvd.init()
    rank, size = tvd.rank(), tvd.size()

    def reduce_all():
        return [tvd.allreduce(tf.fill([3], float(i + rank)), op=tvd.Sum) for i in range(32)]

    expected = [float(i * size + 1) for i in range(32)]
    for _ in range(2):
        assert [float(each[0]) for each in tf.function(reduce_all)()] == expected
    assert [float(each[0]) for each in tf.function(reduce_all, jit_compile=True)()] == expected
    weight = tf.Variable([2.0, 2.0])

    @tf.function(jit_compile=True)
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * weight) * (rank + 1.0)
        weight.assign_sub(tvd.DistributedGradientTape(tape).gradient(loss, weight))

    for _ in range(2):
        step()
    assert weight.numpy().tolist() == [2.0 * (1 - (size + 1)) ** 2] * 2
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        assert [float(each[0]) for each in session.run(reduce_all())] == expected
    assert float(tvd.allreduce(tf.ones([1]))[0]) == 1
    report(len(records), [words in record for words, record in zip({words!r}, records)])
"""

UNAVAILABLE = """
    import perseus_like.tensorflow as tvd
    from perseus_like.tensorflow import native
    tf.config.get_visible_devices = lambda kind=None: [kind]
    hide("tensorflow.python.eager.polymorphic_function.concrete_function")
    tvd.init()
    try:
        tf.function(lambda: tvd.allreduce(tf.ones([1])), jit_compile=True)()
    except RuntimeError as error:
        report(type(error).__name__, "there is a GPU; use jit_compile=False" in str(error))
    assert float(tf.function(lambda: tvd.allreduce(tf.ones([1])))()[0]) == 1
"""

OTHER_RANKS = """
    import perseus_like.tensorflow as tvd
    tvd.init()
    rank = tvd.rank()
    total = tf.function(lambda: tvd.allreduce(tf.ones([1]), op=tvd.Sum), jit_compile=True)
    assert float(total()[0]) == 2
    tvd.shutdown()
    tvd.init(comm=[rank])
    try:
        total()
    except tf.errors.OpError as error:
        report(f"compiled for rank {rank} of 2, and this is rank 0 of 1" in str(error))
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
    try:
        while True:
            step()
    except tf.errors.OpError as error:
        report(type(error).__name__, "HorovodInternalError (peer_lost)" in str(error), "rank 1" in str(error))
"""


@pytest.mark.slow
@pytest.mark.parametrize("part", CHANGES)
def test_fallbacks_if_private_parts_of_tensorflow_have_changed(part: str, ranks: Ranks) -> None:
    change, words = CHANGES[part]
    world = ranks(2, HEAD + FALLBACKS.format(change=change, words=words))
    assert [world.reports_of(rank) for rank in range(2)] == ["2 [True, True]\n"] * 2, world


@pytest.mark.slow
def test_compiled_functions_that_cannot_run_are_an_error(ranks: Ranks) -> None:
    world = ranks(2, HEAD + UNAVAILABLE)
    assert [world.reports_of(rank) for rank in range(2)] == ["UnavailableError True\n"] * 2, world


@pytest.mark.slow
def test_a_compiled_function_after_ranks_have_changed(ranks: Ranks) -> None:
    world = ranks(2, HEAD + OTHER_RANKS)
    assert [world.reports_of(rank) for rank in range(2)] == ["True\n"] * 2, world


@pytest.mark.slow
def test_a_dead_peer_ends_a_step(ranks: Ranks) -> None:
    world = ranks(2, DEATH, launcher=PATIENT_LAUNCHER)
    assert world.reports_of(0) == "UnknownError True True\n", world
