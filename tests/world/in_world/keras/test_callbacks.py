"""Compares the effects of callbacks on metrics, learning rates and files with NumPy."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import keras
import numpy as np
import pytest

import perseus_like.keras as hvd
import perseus_like.numpy as plain

from .training import INPUTS, TARGETS, assert_same_weights, model_of, tensors, values_of, variables

STEPS, BATCH = 5, 4
callbacks = hvd.callbacks


class Rates(keras.callbacks.Callback):  # type: ignore[misc]
    """Records the learning rate of each batch. It must come after the callbacks that change the rate."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        rate = self.model.optimizer.learning_rate
        self.seen.append(float(np.asarray(rate.numpy())))


def rates_of(callback: Any, epochs: int, optimizer: Any = None) -> tuple[list[float], Any]:
    """Returns the learning rates of all batches, and fit's history."""
    model, rates = model_of(), Rates()
    model.compile(hvd.DistributedOptimizer(optimizer or keras.optimizers.SGD(0.5)), "mse")
    rows = slice(0, STEPS * BATCH)
    more = {"batch_size": BATCH, "epochs": epochs, "verbose": 0}
    history = model.fit(INPUTS[rows], TARGETS[rows], callbacks=[callback, rates], **more)
    return rates.seen, history.history


def test_metrics_are_averages_over_ranks(rank: int, size: int) -> None:
    logs = {"loss": 1.5 + rank, "accuracy": np.float32(0.25 * rank), "rows": [1, 2]}
    callbacks.MetricAverageCallback().on_epoch_end(0, logs)
    assert logs["loss"] == 1.5 + np.mean(range(size))
    assert logs["accuracy"] == 0.25 * np.mean(range(size))
    assert logs["rows"] == [1, 2], "a value that is not a number must not change"
    callbacks.MetricAverageCallback().on_epoch_end(0, None)


def test_metrics_of_fit_are_averages_over_ranks(rank: int, size: int) -> None:
    model = model_of()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    rows, mine = slice(0, 16), slice(40 + 10 * rank, 50 + 10 * rank)
    more = {"validation_data": (INPUTS[mine], TARGETS[mine]), "verbose": 0}
    history = model.fit(INPUTS[rows], TARGETS[rows], callbacks=[callbacks.MetricAverageCallback()], **more)
    everybody = slice(40, 40 + 10 * size)
    expected = np.mean((model.predict(INPUTS[everybody], verbose=0) - TARGETS[everybody]) ** 2, dtype=np.float64)
    np.testing.assert_allclose(history.history["val_loss"], [expected], rtol=1e-5)


@pytest.mark.parametrize(
    ("first", "others", "text"),
    [
        ({"loss": 1.0}, {"loss": 1.0, "more": 2.0}, "at position 1, rank 0 has nothing, rank 1 has more"),
        ({"loss": 1.0, "mae": 2.0}, {"loss": 1.0, "mse": 3.0}, "at position 1, rank 0 has mae, rank 1 has mse"),
        ({"loss": 1.0}, None, "at position 0, rank 0 has loss, rank 1 has nothing"),
    ],
    ids=str,
)
def test_different_metrics_are_an_error_on_all_ranks(
    first: dict[str, float], others: dict[str, float] | None, text: str, two_ranks: None, rank: int
) -> None:
    with pytest.raises(hvd.HorovodInternalError, match=text) as caught:
        callbacks.MetricAverageCallback().on_epoch_end(0, others if rank else first)
    texts = plain.allgather_object(str(caught.value))
    assert texts[0] == texts[1]


def test_a_schedule_by_epochs() -> None:
    schedule = callbacks.LearningRateScheduleCallback(0.4, multiplier=0.1, start_epoch=1, end_epoch=3)
    seen, history = rates_of(schedule, epochs=4)
    by_epoch = [0.5, 0.4, 0.04, 0.04]  # no change before the first or after the last epoch
    np.testing.assert_allclose(seen, np.repeat(by_epoch, STEPS), rtol=1e-6)
    np.testing.assert_allclose(history["lr"], by_epoch, rtol=1e-6)


@pytest.mark.slow
def test_a_schedule_by_batches() -> None:
    def multiplier(epoch: float) -> float:
        return 1.0 / (1.0 + epoch)

    seen, _ = rates_of(callbacks.LearningRateScheduleCallback(0.4, multiplier, staircase=False), epochs=2)
    np.testing.assert_allclose(seen, 0.4 / (1 + np.arange(2 * STEPS) / STEPS), rtol=1e-6)


@pytest.mark.parametrize("steps", [None, STEPS])
def test_warmup(steps: int | None, size: int) -> None:
    warmup = callbacks.LearningRateWarmupCallback(initial_lr=0.6, warmup_epochs=2, steps_per_epoch=steps)
    seen, history = rates_of(warmup, epochs=3)
    done = np.minimum(np.arange(1, 3 * STEPS + 1) / (2 * STEPS), 1)
    np.testing.assert_allclose(seen, 0.6 / size * (1 + (size - 1) * done), rtol=1e-6)
    np.testing.assert_allclose(history["lr"][1:], [0.6, 0.6], rtol=1e-6)


def schedule_of_epoch(correct: bool) -> Any:
    return callbacks.LearningRateScheduleCallback(1.0, lambda epoch: 0.5**epoch, momentum_correction=correct)


@pytest.mark.parametrize("correct", [True, False])
def test_velocities_contain_the_learning_rate(correct: bool) -> None:
    class Model:
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0, momentum=0.5))

    schedule = schedule_of_epoch(correct)
    schedule.set_model(Model())
    trained = variables([[0.0]])
    position, velocity = 0.0, 0.0
    for epoch in range(4):
        schedule.on_epoch_begin(epoch)
        schedule.on_batch_begin(0)
        rate = 0.5**epoch
        if correct and epoch:
            velocity *= 0.5
        Model.optimizer.apply_gradients(zip(tensors([[1.0]]), trained, strict=True))
        velocity = 0.5 * velocity - rate
        position += velocity
        assert values_of(trained) == [[position]]


def test_a_schedule_needs_a_rate_and_steps() -> None:
    kinds: list[Any] = [callbacks.LearningRateScheduleCallback, callbacks.LearningRateWarmupCallback]
    for make in kinds:
        with pytest.raises(ValueError, match="initial_lr"):
            make(None, 1)
    schedule = callbacks.LearningRateScheduleCallback(0.1, 0.5, staircase=False)
    schedule.set_params({})
    with pytest.raises(ValueError, match="steps_per_epoch"):
        schedule.on_train_begin()


def deferred() -> Any:
    return keras.Sequential([keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(2)])


@pytest.mark.parametrize("built_on", [(), (0,), (1,), (0, 1)], ids=str)
def test_ranks_start_with_equal_variables_that_the_first_batch_creates(
    built_on: tuple[int, ...], rank: int, size: int
) -> None:
    """The first batch creates the variables of model and optimizer. On rank 1 they have other values."""
    keras.utils.set_random_seed(rank)
    model = deferred()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), "mse")
    if rank in built_on:
        model.build((None, 3))
    model.fit(
        INPUTS[:8], TARGETS[:8], batch_size=4, verbose=0, callbacks=[callbacks.BroadcastGlobalVariablesCallback(0)]
    )
    state = [np.array(each) for each in model.get_weights()]
    for mine, first in zip(state, plain.broadcast_object(state, 0), strict=True):
        np.testing.assert_array_equal(mine, first)


def test_local_variables_keep_their_values(rank: int) -> None:
    model = model_of(seed=rank)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
    local = model.layers[0].kernel
    mine = np.array(local.numpy())
    broadcast = callbacks.BroadcastGlobalVariablesCallback(0)
    broadcast.register_local_var(local)
    model.fit(INPUTS[:8], TARGETS[:8], verbose=0, callbacks=[broadcast])
    np.testing.assert_array_equal(local.numpy(), mine)
    shared = np.array(model.layers[-1].kernel.numpy())
    np.testing.assert_array_equal(shared, plain.broadcast(shared, 0))


def test_rank_0_keeps_the_best_model(rank: int) -> None:
    """The losses are 3, 1 and 2, so the second epoch is the best."""

    class Losses(keras.callbacks.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weights: list[Any] = []

        def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
            logs["val_loss"] = [3.0, 1.0, 2.0][epoch]
            self.weights.append(self.model.get_weights())

    model, losses = model_of(), Losses()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    with TemporaryDirectory() as folder:
        best = callbacks.BestModelCheckpoint(monitor="val_loss")
        best.filepath = str(Path(folder) / "best.keras")
        chosen = [losses, best] if rank == 0 else [losses]
        model.fit(INPUTS[:8], TARGETS[:8], epochs=3, verbose=0, callbacks=chosen)
        if rank == 0:
            model.set_weights(losses.weights[1])
            assert_same_weights(keras.models.load_model(best.filepath), model, 0)


class Fragile(keras.layers.Dense):  # type: ignore[misc]
    """Raises an error while it is written to a file, in the method `breaks_in`."""

    breaks_in = ""

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)
        if self.breaks_in == "save_own_variables":
            raise RuntimeError("interrupted")

    def get_config(self) -> Any:
        if self.breaks_in == "get_config":
            raise RuntimeError("interrupted")
        return super().get_config()


class ImprovingEpochs(keras.callbacks.Callback):  # type: ignore[misc]
    """Makes each epoch the best so far. From the second epoch on, `fragile` cannot be written."""

    def __init__(self, fragile: Any, breaks_in: str) -> None:
        super().__init__()
        self.fragile, self.breaks_in = fragile, breaks_in
        self.best: list[Any] = []

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        logs["val_loss"] = 1.0 - epoch
        self.fragile.breaks_in = self.breaks_in if epoch else ""
        self.best = self.best or self.model.get_weights()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "breaks_in"),
    [(".keras", "save_own_variables"), (".h5", "get_config"), (".weights.h5", "save_own_variables")],
)
def test_the_best_model_stays_until_a_better_one_is_written(ending: str, breaks_in: str) -> None:
    fragile = Fragile(8)
    model = model_of(lambda: [fragile])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    improves, best = ImprovingEpochs(fragile, breaks_in), callbacks.BestModelCheckpoint()
    best.save_weights_only = ending == ".weights.h5"
    with TemporaryDirectory() as folder:
        best.filepath = str(Path(folder) / f"best{ending}")
        with pytest.raises(RuntimeError, match="interrupted"):
            model.fit(INPUTS[:8], TARGETS[:8], epochs=3, verbose=0, callbacks=[improves, best])
        assert best.model is model
        assert [each.name for each in Path(folder).iterdir()] == [f"best{ending}"]
        if best.save_weights_only:
            model.load_weights(best.filepath)
        elif ending == ".h5" and keras.__version__.startswith("3.0."):
            pytest.skip("Keras 3.0 cannot load such a file: it ignores custom_objects and compile=False")
        else:
            model = keras.models.load_model(best.filepath, custom_objects={"Fragile": Fragile}, compile=False)
    for kept, expected in zip(model.get_weights(), improves.best, strict=True):
        np.testing.assert_array_equal(kept, expected)


@pytest.mark.slow
def test_the_best_model_needs_a_path() -> None:
    model = model_of()
    model.compile(keras.optimizers.SGD(0.1), "mse")
    with pytest.raises(ValueError, match="filepath"):
        model.fit(
            INPUTS[:8], TARGETS[:8], verbose=0, callbacks=[callbacks.BestModelCheckpoint(monitor="loss", mode="min")]
        )
