"""Tests of elastic states of Keras models, which are saved, restored and synchronized, and of their callbacks."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import perseus_like.keras as hvd
import perseus_like.numpy as plain

from .training import BACKEND, INPUTS, TARGETS, assert_same_weights, model_of, tensors

elastic = hvd.elastic
ROWS, BATCH = 20, 4
STATES = ["perseus_like.keras", "perseus_like.tensorflow"]


def trained(seed: int = 3) -> Any:
    model = model_of(seed=seed)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), "mse")
    return model


def fit(model: Any, epochs: int = 1, **more: Any) -> None:
    model.fit(INPUTS[:ROWS], TARGETS[:ROWS], batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0, **more)


def all_values(model: Any) -> list[Any]:
    found = model.optimizer.variables
    return [np.array(each.numpy()) for each in [*model.weights, *(found() if callable(found) else found)]]


def assert_equal(ours: list[Any], theirs: list[Any]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


def state_of(kind: str, model: Any, **more: Any) -> Any:
    if kind == "perseus_like.keras":
        return elastic.KerasState(model, **more)
    if BACKEND != "tensorflow":
        pytest.skip("this state is for TensorFlow alone")
    import perseus_like.tensorflow as tvd

    return tvd.elastic.TensorFlowKerasState(model, **more)


@pytest.mark.parametrize("kind", STATES)
def test_commit_and_restore(kind: str, rank: int) -> None:
    model = trained()
    fit(model)
    state = state_of(kind, model, epoch=3, batch=0)
    state.epoch = 4
    state.commit()
    kept = all_values(model)
    fit(model)
    state.epoch, state.batch = 9, 7
    assert not np.array_equal(all_values(model)[0], kept[0])
    state.restore()
    assert_equal(all_values(model), kept)
    assert (state.epoch, state.batch) == (4, 0)


@pytest.mark.parametrize("kind", STATES)
def test_sync_gives_all_ranks_the_values_of_rank_0(kind: str, rank: int) -> None:
    model = trained(seed=3 + rank)
    model.optimizer.learning_rate = 0.1 * (rank + 1)
    state = state_of(kind, model, epoch=rank)
    state.sync()
    values = all_values(model)
    assert_equal(values, plain.broadcast_object(values, 0))
    assert float(np.asarray(model.optimizer.learning_rate.numpy())) == pytest.approx(0.1)
    assert state.epoch == 0
    fit(model)
    state.restore()  # restores the state after sync()
    assert_equal(all_values(model), values)


@pytest.mark.parametrize("kind", STATES)
def test_a_failure_between_the_passes_of_a_step(kind: str, rank: int) -> None:
    """The weights equal those of a training without a failure, at each place and with commits within a step, too."""

    def trained_weights(commit_every: int, fails_at: int = -1) -> list[Any]:
        model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
        model.set_weights([np.zeros((1, 1)), np.zeros(1)])
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
        model.compile(optimizer, "mse")
        state, left = state_of(kind, model, done=0), [fails_at]

        @elastic.run  # type: ignore[untyped-decorator]
        def train(state: Any) -> None:
            while state.done < 6:
                gradients = tensors([[[1.0 + rank + 10 * state.done]], [2.0]])
                bias = None if state.done % 2 else gradients[1]
                optimizer.apply_gradients(zip([gradients[0], bias], model.trainable_variables, strict=True))
                if left == [state.done]:
                    left.clear()
                    plain.allreduce(np.ones(2 + plain.rank()), name="fault")
                state.done += 1
                if state.done % commit_every == 0:
                    state.commit()

        train(state)
        assert not left or fails_at < 0
        return [np.array(each) for each in model.get_weights()]

    expected = trained_weights(9)
    for fails_at in range(6):
        for ours, theirs in zip(trained_weights(1 + fails_at % 3, fails_at), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_a_model_without_weights_is_refused() -> None:
    with pytest.raises(ValueError, match="build"):
        elastic.KerasState(keras.Sequential([keras.layers.Dense(2)]))


class Watch(keras.callbacks.Callback):  # type: ignore[misc]
    """Records the state at the end of each batch."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.seen: list[tuple[int, int]] = []

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append((self.state.epoch, self.state.batch))


@pytest.mark.slow
def test_callbacks_record_epoch_and_batch() -> None:
    model = trained()
    state = elastic.KerasState(model, batch=0, epoch=0)
    watch = Watch(state)
    places = [elastic.UpdateBatchStateCallback(state), elastic.UpdateEpochStateCallback(state), watch]
    for _ in range(2):
        fit(model, epochs=2, callbacks=places)
        assert state.batch == 0
    assert state.epoch == 4
    assert watch.seen == [(epoch, batch) for epoch in range(4) for batch in range(ROWS // BATCH)]


@pytest.mark.slow
@pytest.mark.parametrize(("every", "batches"), [(1, [0, 1, 2, 3, 4]), (2, [1, 3]), (9, [])])
def test_commits_by_batches_and_epochs(every: int, batches: list[int]) -> None:
    model = trained()
    commits: list[int | str] = []

    class State(elastic.KerasState):
        def commit(self) -> None:
            super().commit()
            commits.append(self.batch)

    state = State(model, batch=0)
    chosen = [elastic.UpdateBatchStateCallback(state), elastic.CommitStateCallback(state, batches_per_commit=every)]
    fit(model, callbacks=chosen)
    assert commits == [*batches, 0]
    kept = all_values(model)
    model.set_weights([each * 0 for each in model.get_weights()])
    state.restore()
    assert_equal(all_values(model), kept)


class Fault(keras.callbacks.Callback):  # type: ignore[misc]
    """Makes the ranks submit different shapes in one batch, once."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.batch: int | None = batch

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == self.batch:
            self.batch = None
            plain.allreduce(np.ones(2 + plain.rank()), name="fault")


def test_training_that_fails_continues_from_the_last_commit() -> None:
    """The weights equal those of a training without a failure.

    Commits are at the end of epochs, and the failure is in the second epoch.
    """
    without_failure = trained()
    fit(without_failure, epochs=3)
    model = trained()
    state, fault, starts = elastic.KerasState(model, epoch=0), Fault(2), []

    class FaultInSecondEpoch(keras.callbacks.Callback):  # type: ignore[misc]
        def on_batch_end(self, batch: int, logs: Any = None) -> None:
            if state.epoch == 1:
                fault.on_batch_end(batch)

    @elastic.run  # type: ignore[untyped-decorator]
    def train(state: Any) -> None:
        starts.append(state.epoch)
        places = [elastic.UpdateEpochStateCallback(state), elastic.CommitStateCallback(state, 100)]
        fit(model, epochs=3 - state.epoch, callbacks=[*places, FaultInSecondEpoch()])

    train(state)
    assert starts == [0, 1]
    assert state.epoch == 3
    assert_same_weights(model, without_failure, 1e-6)


def test_a_collective_that_fails_within_fit(rank: int) -> None:
    """The gradients of one batch differ. The loop must recognise TensorFlow's error as this library's."""
    model = trained()
    state = elastic.KerasState(model, tries=0)

    @elastic.run  # type: ignore[untyped-decorator]
    def train(state: Any) -> int:
        tries: int = state.tries
        state.tries += 1
        state.save()
        if tries == 0:
            odd = model_of(lambda: [keras.layers.Dense(4 + rank)])
            odd.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
            fit(odd)
        fit(model)
        return tries

    assert train(state) == 1
