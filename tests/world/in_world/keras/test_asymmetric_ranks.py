"""Tests of ranks that do not make the same Keras objects: they train on, or all get an error that names a variable."""

from __future__ import annotations

from typing import Any

import keras
import pytest

import perseus_like.keras as hvd
import perseus_like.numpy as plain

from .test_mistakes import texts_of_fit
from .training import (
    INPUTS,
    TARGETS,
    assert_same_weights,
    fit_alone,
    fit_together,
    model_of,
)

pytestmark = [
    pytest.mark.usefixtures("two_ranks"),
    pytest.mark.parametrize("eagerly", [False, pytest.param(True, marks=pytest.mark.slow)]),
]


def _optimizer() -> Any:
    return hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))


def _with_batch_norm() -> list[Any]:
    return [keras.layers.Dense(8), hvd.SyncBatchNormalization()]


def test_extra_models_and_optimizers(eagerly: bool, rank: int, size: int) -> None:
    """One rank makes optimizers that it does not use, and a further model with layers that communicate."""
    extra = [_optimizer(), _optimizer(), model_of(_with_batch_norm)] if rank == 0 else []
    ours = fit_together(model_of(_with_batch_norm), _optimizer(), rank, size, run_eagerly=eagerly)
    theirs = fit_alone(
        model_of(lambda: [keras.layers.Dense(8), keras.layers.BatchNormalization()]), keras.optimizers.SGD(0.1)
    )
    assert_same_weights(ours, theirs, 1e-4)
    assert len(extra) == (3 if rank == 0 else 0)


def test_optimizers_that_are_made_in_another_order(eagerly: bool, rank: int, size: int) -> None:
    hidden = [lambda: [keras.layers.Dense(8)], lambda: [keras.layers.Dense(4)]]
    optimizers: list[Any] = [None, None]
    for place in (0, 1) if rank == 0 else (1, 0):
        optimizers[place] = _optimizer()
    for layers, optimizer in zip(hidden, optimizers, strict=True):
        ours = fit_together(model_of(layers), optimizer, rank, size, run_eagerly=eagerly)
        assert_same_weights(ours, fit_alone(model_of(layers), keras.optimizers.SGD(0.1)))


def test_models_that_are_trained_in_another_order(eagerly: bool, rank: int) -> None:
    models = [model_of(lambda: [keras.layers.Dense(8)]), model_of(lambda: [keras.layers.Dense(4)])]
    for model in models:
        model.compile(_optimizer(), "mse", run_eagerly=eagerly)
    texts = texts_of_fit(models[min(rank, 1)])
    assert texts[0] == texts[1]
    assert "dense" in texts[0]


def test_first_fits_of_equal_shapes_in_another_order(eagerly: bool, rank: int) -> None:
    """Nothing tells the two apart but the order in which they are made."""
    models = [model_of(seed=number) for number in range(2)]
    for model in models:
        model.compile(_optimizer(), "mse", run_eagerly=eagerly)
    first, second = models if rank == 0 else reversed(models)
    first.fit(INPUTS[:8], TARGETS[:8], batch_size=4, shuffle=False, verbose=0)
    texts = texts_of_fit(second)
    assert texts[0] == texts[1]
    for words in ("rank 0 has gradients after steps of 0 equal", "rank 1 has gradients after steps of 1 equal"):
        assert words in texts[0]


def test_models_of_equal_shapes_in_another_order(eagerly: bool, rank: int) -> None:
    """One rank trains another model than the others do, after all have trained both."""
    models = [model_of(seed=number) for number in range(2)]

    def fit_all() -> None:
        for model in models:
            model.fit(INPUTS[:8] + rank, TARGETS[:8], batch_size=4, shuffle=False, verbose=0)
            digests = plain.allgather_object(b"".join(each.tobytes() for each in model.get_weights()))
            assert len(set(digests)) == 1

    for model in models:
        model.compile(_optimizer(), "mse", run_eagerly=eagerly)
    fit_all()
    before = [model.get_weights() for model in models]
    texts = texts_of_fit(models[min(rank, 1)])
    assert texts[0] == texts[1]
    assert "gradients of optimizer" in texts[0]
    for model, weights in zip(models, before, strict=True):
        for one, other in zip(model.get_weights(), weights, strict=True):
            assert (one == other).all()
    fit_all()
