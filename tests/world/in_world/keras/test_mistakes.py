"""Tests of `fit` with different models, missing gradients and variables that are added later."""

from __future__ import annotations

import re
from typing import Any

import keras
import numpy as np
import pytest

import perseus_like.keras as hvd
import perseus_like.numpy as plain

from .training import (
    BACKEND,
    INPUTS,
    TARGETS,
    assert_same_weights,
    fit_alone,
    fit_together,
    model_of,
    one_layer,
    tensors,
    values_of,
    variables,
)


def our_text(error: Exception) -> str:
    """Returns the text of a collective's error, which TensorFlow's kernels raise as one of TensorFlow's errors."""
    if isinstance(error, hvd.HorovodInternalError):
        return str(error)
    assert BACKEND == "tensorflow", error
    from perseus_like.tensorflow.errors import translated

    ours = translated(error)
    assert isinstance(ours, hvd.HorovodInternalError), error
    return str(ours)


def texts_of_fit(model: Any, inputs: Any = INPUTS[:8], **more: Any) -> list[str]:
    """Returns the error texts of `fit` on all ranks. Checks that the job continues after the error."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - its class is TensorFlow's or ours
        model.fit(inputs, TARGETS[: len(inputs)], batch_size=4, verbose=0, **more)
    texts: list[str] = plain.allgather_object(our_text(caught.value))
    assert float(np.asarray(hvd.allreduce(1.0, op=hvd.Sum))) == plain.size()
    return texts


@pytest.mark.parametrize("eagerly", [False, True])
def test_different_shapes_end_fit_with_the_same_error(eagerly: bool, rank: int) -> None:
    model = model_of(lambda: [keras.layers.Dense(8 + rank)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", run_eagerly=eagerly)
    texts = texts_of_fit(model)
    assert texts[0] == texts[1]
    assert "rank 0" in texts[0]
    assert "rank 1" in texts[0]
    # The error may name any tensor of the group that differs.
    shapes = [("[3,8]", "[3,9]"), ("[8]", "[9]"), ("[8,2]", "[9,2]")]
    assert any(f"float32{one}" in texts[0] and f"float32{other}" in texts[0] for one, other in shapes)


def test_different_models_are_an_error_before_the_first_batch(rank: int) -> None:
    model = model_of(lambda: [keras.layers.Dense(8 + rank)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    texts = texts_of_fit(model, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    assert texts[0] == texts[1]
    assert "different weights" in texts[0]


class TwoBranches(keras.Model):  # type: ignore[misc]
    """Has two layers with weights. If `uses_both` is false, the second has no effect."""

    def __init__(self, uses_both: bool) -> None:
        super().__init__()
        self.uses_both = uses_both
        self.first, self.second = keras.layers.Dense(2), keras.layers.Dense(2)
        self.first.build((None, 3))
        self.second.build((None, 3))

    def call(self, inputs: Any) -> Any:
        found = self.first(inputs)
        return found + self.second(inputs) if self.uses_both else found


def two_branches(uses_both: bool) -> Any:
    keras.utils.set_random_seed(3)
    return TwoBranches(uses_both)


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("eagerly", [False, True])
def test_a_gradient_that_one_rank_lacks_is_an_error(eagerly: bool, rank: int) -> None:
    model = two_branches(uses_both=rank == 0)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", run_eagerly=eagerly)
    texts = texts_of_fit(model)
    assert texts[0] == texts[1]
    text = r", gradient [23], of \S*(kernel|bias): rank 0 has float32\[\S+\], rank 1 has no gradient; all ranks must"
    assert re.search(text, texts[0]), texts[0]


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_a_gradient_that_all_ranks_lack_is_left_out(rank: int, size: int) -> None:
    alone = fit_alone(two_branches(uses_both=False), keras.optimizers.SGD(0.1))
    ours = fit_together(two_branches(uses_both=False), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), rank, size)
    assert_same_weights(ours, alone)


def outcome_of_growing(optimizer: Any) -> Any:
    """Returns the values, or the error's class, after a step with a variable that the first step did not have."""
    trained = variables([[1.0], [2.0]])
    for number in (1, 2, 2):
        gradients = tensors([[0.5], [0.25]])[:number]
        try:
            optimizer.apply_gradients(zip(gradients, trained[:number], strict=True))
        except (ValueError, KeyError) as error:
            return type(error)
    return values_of(trained)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_variable_after_the_first_step_has_the_result_of_plain_keras(momentum: float) -> None:
    """Keras 3 raises an error that asks for a new optimizer. Older releases accept the variable."""
    expected = outcome_of_growing(keras.optimizers.SGD(1.0, momentum=momentum))
    assert outcome_of_growing(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0, momentum=momentum))) == expected


def test_a_layer_that_is_added_between_two_fits(rank: int, size: int) -> None:
    def grown(model: Any) -> Any:
        model.add(keras.layers.Dense(2, kernel_initializer=keras.initializers.GlorotUniform(seed=4)))
        return model

    alone, ours = model_of(one_layer), model_of(one_layer)
    for grow in (False, True):
        if grow:
            alone, ours = grown(alone), grown(ours)
        alone = fit_alone(alone, keras.optimizers.SGD(0.1))
        ours = fit_together(ours, hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), rank, size)
    assert_same_weights(ours, alone)


def test_a_backend_that_is_not_supported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(RuntimeError, match=r"'jax' backend.*tensorflow or torch"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
