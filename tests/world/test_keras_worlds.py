"""Checks Keras on torch, and that `fit` ends with this library's error, and does not hang, if a peer dies."""

from __future__ import annotations

import importlib.util

import pytest

from tests.job import PATIENT_LAUNCHER, needs_keras_on_torch

from .conftest import Ranks

pytestmark = pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="no Keras")

DEATH = """
    import keras
    import perseus_like.keras as keras_hvd

    keras_hvd.init()
    rank = keras_hvd.rank()
    inputs, targets = np.ones((800, 3), np.float32), np.ones((800, 2), np.float32)

    class Die(keras.callbacks.Callback):
        def on_batch_end(self, batch, logs=None):
            if rank == 1 and batch == 5:
                os._exit(3)

    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(8), keras.layers.Dense(2)])
    model.compile(keras_hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    try:
        model.fit(inputs, targets, batch_size=4, epochs=100, verbose=0, callbacks=[Die()])
    except Exception as error:
        text = str(error) if keras.backend.backend() == "tensorflow" else f"{type(error).__mro__}: {error}"
        report("HorovodInternalError" in text, "rank 1" in text)
"""


def test_fit_on_torch(ranks: Ranks) -> None:
    """The other tests of this backend are slow ones."""
    needs_keras_on_torch()
    ranks(
        2,
        """
        import keras
        import perseus_like.keras as keras_hvd

        keras_hvd.init()
        inputs = np.full((8, 3), keras_hvd.rank(), np.float32)
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1, kernel_initializer="zeros")])
        model.compile(keras_hvd.DistributedOptimizer(keras.optimizers.SGD(0.25)), "mse")
        model.fit(inputs, np.ones((8, 1), np.float32), batch_size=8, epochs=1, verbose=0)
        # The gradient of the kernel is -2 * rank, so its mean is -1; that of the bias is -2.
        assert [weight.tolist() for weight in model.get_weights()] == [[[0.25]] * 3, [0.5]], model.get_weights()
        """,
        KERAS_BACKEND="torch",
    ).succeeded()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_a_dead_peer_ends_fit(backend: str, ranks: Ranks) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"no {backend}")
    if backend == "torch":
        needs_keras_on_torch()
    world = ranks(2, DEATH, launcher=PATIENT_LAUNCHER, KERAS_BACKEND=backend)
    assert world.reports_of(0) == "True True\n", world
