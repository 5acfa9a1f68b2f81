"""A small model, and the data of all ranks and of one rank, for the Keras and the backend that the world uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

import perseus_like.keras as hvd

KERAS_2 = keras.__version__.startswith("2.")
BACKEND = keras.backend.backend()
BATCH, STEPS = 8, 20
LossScaleOptimizer = (keras.mixed_precision if KERAS_2 else keras.optimizers).LossScaleOptimizer

_random = np.random.default_rng(5)
INPUTS = _random.normal(size=(BATCH * STEPS, 3)).astype("float32")
TARGETS = _random.normal(size=(BATCH * STEPS, 2)).astype("float32")


def one_layer() -> list[Any]:
    return [keras.layers.Dense(8, activation="tanh")]


def model_of(hidden: Callable[[], list[Any]] = one_layer, seed: int = 3) -> Any:
    """Returns a model. `hidden` makes its hidden layers, which take their seeds when they are made."""
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.layers.Input((3,)), *hidden(), keras.layers.Dense(2)])


def own_rows(rank: int, size: int, batch: int = BATCH) -> Any:
    """Returns the rows of this rank in each batch."""
    share = batch // size
    return np.concatenate([np.arange(start, start + share) + rank * share for start in range(0, len(INPUTS), batch)])


def fit_alone(model: Any, optimizer: Any, **more: Any) -> Any:
    """Trains a model on the batches of all ranks together."""
    model.compile(optimizer, "mse", **more)
    model.fit(INPUTS, TARGETS, batch_size=BATCH, shuffle=False, verbose=0)
    return model


def fit_together(model: Any, optimizer: Any, rank: int, size: int, passes: int = 1, **more: Any) -> Any:
    """Trains a model on this rank's share of each batch, from rank 0's weights."""
    rows = own_rows(rank, size)
    model.compile(optimizer, "mse", **more)
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    batch_size = BATCH // size // passes
    model.fit(INPUTS[rows], TARGETS[rows], batch_size=batch_size, shuffle=False, verbose=0, callbacks=[broadcast])
    return model


def assert_same_weights(ours: Any, theirs: Any, tolerance: float = 1e-5) -> None:
    for one, other in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)


def tensors(values: Sequence[Any]) -> list[Any]:
    if BACKEND == "torch":
        return [keras.ops.convert_to_tensor(np.asarray(value, "float32")) for value in values]
    import tensorflow as tf

    return [tf.constant(value, tf.float32) for value in values]


def variables(values: Sequence[Any]) -> list[Any]:
    if not KERAS_2:
        return [keras.Variable(np.asarray(value, "float32")) for value in values]
    import tensorflow as tf

    return [tf.Variable(value, dtype=tf.float32) for value in values]


def values_of(found: Sequence[Any]) -> list[Any]:
    return [np.asarray(each.numpy()).tolist() for each in found]
