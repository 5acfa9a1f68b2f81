"""Checks that `fit` on all ranks ends with the weights of one process on the whole batches, with any optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import keras
import numpy as np
import pytest

import perseus_like.keras as hvd

from .training import (
    BACKEND,
    INPUTS,
    KERAS_2,
    STEPS,
    TARGETS,
    LossScaleOptimizer,
    assert_same_weights,
    fit_alone,
    fit_together,
    model_of,
    own_rows,
    tensors,
    values_of,
    variables,
)

optimizers = keras.optimizers
Make = Callable[[], Any]


def momentum() -> Any:
    return optimizers.SGD(0.1, momentum=0.9, nesterov=True)


def scheduled() -> Any:
    return optimizers.Adam(optimizers.schedules.ExponentialDecay(0.02, 3, 0.8), clipnorm=0.5)


def clipped() -> Any:
    return optimizers.AdamW(0.01, weight_decay=0.1, global_clipnorm=0.3, use_ema=True)


def older_momentum() -> Any:
    return optimizers.legacy.SGD(0.1, momentum=0.9)


def older_adam() -> Any:
    return optimizers.legacy.Adam(0.01, clipnorm=0.5)


MAKES = [momentum, scheduled, clipped]
WITH_MOMENTUM = [momentum]
if KERAS_2:
    MAKES += [older_momentum, older_adam]
    WITH_MOMENTUM.append(older_momentum)


@pytest.mark.parametrize("make", MAKES)
def test_fit_gives_the_weights_of_one_process(make: Make, rank: int, size: int) -> None:
    alone = fit_alone(model_of(), make())
    ours = fit_together(model_of(seed=3 + rank), hvd.DistributedOptimizer(make()), rank, size)
    assert_same_weights(ours, alone)
    assert int(ours.optimizer.iterations.numpy()) == STEPS


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"groups": 2}, {"gradient_predivide_factor": 3.0}], ids=str)
def test_options_that_do_not_change_the_result(options: dict[str, Any], rank: int, size: int) -> None:
    alone = fit_alone(model_of(), momentum())
    ours = fit_together(model_of(), hvd.DistributedOptimizer(momentum(), **options), rank, size)
    assert_same_weights(ours, alone)


@pytest.mark.slow
def test_groups_of_variables_and_sums(rank: int, size: int) -> None:
    alone = fit_alone(model_of(), optimizers.SGD(0.1))
    model = model_of()
    groups = [[model.layers[0].kernel, model.layers[-1].kernel]]
    ours = fit_together(
        model, hvd.DistributedOptimizer(optimizers.SGD(0.1 / size), op=hvd.Sum, groups=groups), rank, size
    )
    assert_same_weights(ours, alone)


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_compression_changes_little(compression: str, rank: int, size: int) -> None:
    alone = fit_alone(model_of(), optimizers.SGD(0.1))
    chosen = getattr(hvd.Compression, compression)
    ours = fit_together(model_of(), hvd.DistributedOptimizer(optimizers.SGD(0.1), compression=chosen), rank, size)
    assert_same_weights(ours, alone, 0.02)


@pytest.mark.slow
@pytest.mark.skipif(BACKEND == "torch", reason="torch.compile")
def test_compiled_by_xla(rank: int, size: int) -> None:
    alone = fit_alone(model_of(), momentum())
    ours = fit_together(model_of(), hvd.DistributedOptimizer(momentum()), rank, size, jit_compile=True)
    assert_same_weights(ours, alone)


def wraps() -> list[Any]:
    distributed, scaled = hvd.DistributedOptimizer, LossScaleOptimizer
    return [lambda make: scaled(distributed(make())), lambda make: distributed(scaled(make()))]


@pytest.mark.parametrize("make", [pytest.param(momentum, marks=pytest.mark.slow), MAKES[-1]])
@pytest.mark.parametrize("wrap", [wraps()[0], pytest.param(wraps()[1], marks=pytest.mark.slow)])
def test_loss_scaling_on_either_side(wrap: Any, make: Make, rank: int, size: int) -> None:
    alone = fit_alone(model_of(), make())
    ours = fit_together(model_of(), wrap(make), rank, size)
    assert_same_weights(ours, alone)


@pytest.mark.parametrize("wrap", wraps())
def test_an_infinity_on_one_rank_affects_all_ranks(wrap: Any, rank: int) -> None:
    optimizer = wrap(lambda: optimizers.SGD(1.0))
    trained = variables([[1.0, 2.0]])
    scale = float(np.asarray(optimizer.initial_scale))
    for number, bad_rank in enumerate([1, 0]):
        gradient = [np.inf if rank == bad_rank else 0.0, 1.0]
        optimizer.apply_gradients(zip(tensors([gradient]), trained, strict=True))
        assert values_of(trained) == [[1.0, 2.0]]
        now = float((optimizer.loss_scale if KERAS_2 else optimizer.dynamic_scale).numpy())
        assert now == scale / 2 ** (number + 1)


@pytest.mark.slow
def test_mixed_precision(rank: int, size: int) -> None:
    def hidden() -> list[Any]:
        return [keras.layers.Dense(8, activation="tanh", dtype="mixed_float16") for _ in range(2)]

    alone = fit_alone(model_of(hidden), LossScaleOptimizer(optimizers.SGD(0.1)))
    optimizer = LossScaleOptimizer(hvd.DistributedOptimizer(optimizers.SGD(0.1)))
    ours = fit_together(model_of(hidden), optimizer, rank, size)
    assert_same_weights(ours, alone, 0.01)


PASSES = [
    lambda make, **more: hvd.DistributedOptimizer(make(), **more),
    lambda make, **more: hvd.DistributedOptimizer(LossScaleOptimizer(make()), **more),
]
if not KERAS_2:
    PASSES.append(lambda make, **more: LossScaleOptimizer(hvd.DistributedOptimizer(make(), **more)))


@pytest.mark.parametrize("make", WITH_MOMENTUM)  # other optimizers read `iterations`, which counts passes
@pytest.mark.parametrize("wrap", PASSES)
def test_several_passes_in_a_step(wrap: Any, make: Make, rank: int, size: int) -> None:
    alone = fit_alone(model_of(), make())
    optimizer = wrap(make, backward_passes_per_step=2, average_aggregated_gradients=True)
    ours = fit_together(model_of(), optimizer, rank, size, passes=2)
    counting = getattr(ours.optimizer, "inner_optimizer", ours.optimizer)  # that of Keras 3.0 does not count
    assert int(counting.iterations.numpy()) == 2 * STEPS
    assert_same_weights(ours, alone)


def test_passes_are_summed(rank: int) -> None:

    optimizer = hvd.DistributedOptimizer(optimizers.SGD(1.0), backward_passes_per_step=3)
    trained = variables([[0.0], [0.0]])
    for step in range(6):
        before = values_of(trained)
        gradients = tensors([[1.0 + rank], [float(step)]])
        optimizer.apply_gradients([(gradients[0], trained[0]), (None if step % 3 else gradients[1], trained[1])])
        assert (values_of(trained) == before) == (step % 3 != 2)
    assert values_of(trained) == [[-2 * 3 * 1.5], [-3.0]]


def test_lists_of_variables_count_their_own_passes(rank: int, size: int) -> None:
    """One optimizer trains two models in turn, each with two passes in a step."""
    optimizer = hvd.DistributedOptimizer(optimizers.SGD(1.0), backward_passes_per_step=2)
    first, second = variables([[0.0]]), variables([[0.0], [0.0]])
    optimizer.build([*first, *second])
    for number in range(4):
        for trained in (first, second):
            gradients = tensors([[1.0 + rank + number]] * len(trained))
            optimizer.apply_gradients(zip(gradients, trained, strict=True))
        mean = (size + 1) / 2
        moved = [0.0, -2 * mean - 1, -2 * mean - 1, -4 * mean - 6][number]
        assert values_of([*first, *second]) == [[moved]] * 3


def test_gradients_that_the_program_keeps_or_changes(rank: int, size: int) -> None:
    """The optimizer reduces the gradients that it is given. Gradients that the program keeps do not change."""
    optimizer = hvd.DistributedOptimizer(optimizers.SGD(1.0))
    trained = variables([np.zeros(3), np.zeros((600, 1000)), np.zeros(())])
    kept = tensors([np.full(3, 1.0 + rank), np.full((600, 1000), 2.0 + rank), 3.0 + rank])
    optimizer.apply_gradients(zip(kept, trained, strict=True))
    changed = [gradient * 2 for gradient in kept]
    optimizer.apply_gradients(zip(changed, trained, strict=True))
    mean = (size - 1) / 2
    for number, (gradient, variable) in enumerate(zip(kept, trained, strict=True)):
        assert np.unique(values_of([gradient])[0]).tolist() == [1.0 + number + rank]
        assert np.unique(values_of([variable])[0]).tolist() == [-3 * (1.0 + number + mean)]


def test_passes_within_a_loss_scale_optimizer_of_keras_2() -> None:

    if not KERAS_2:
        pytest.skip("Keras 3 supports this order")
    optimizer = LossScaleOptimizer(hvd.DistributedOptimizer(optimizers.SGD(1.0), backward_passes_per_step=2))
    with pytest.raises(ValueError, match="use the other order"):
        optimizer.apply_gradients(zip(tensors([[1.0]]), variables([[1.0]]), strict=True))


def embedding_model() -> Any:
    keras.utils.set_random_seed(3)
    layers = keras.layers
    return keras.Sequential([layers.Input((3,)), layers.Embedding(7, 4), layers.Flatten(), layers.Dense(2)])


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"sparse_as_dense": True}, {"backward_passes_per_step": 1}], ids=str)
def test_embeddings(options: dict[str, Any], rank: int, size: int) -> None:
    rows = own_rows(rank, size)
    words = np.abs(INPUTS * 3).astype("int32") % 7
    models = []
    for optimizer, chosen, batch in (
        (optimizers.SGD(0.5), slice(None), 8),
        (hvd.DistributedOptimizer(optimizers.SGD(0.5), **options), rows, 8 // size),
    ):
        model = embedding_model()
        model.compile(optimizer, "mse")
        model.fit(words[chosen], TARGETS[chosen], batch_size=batch, shuffle=False, verbose=0)
        models.append(model)
    assert_same_weights(models[1], models[0])


def test_local_layers(rank: int, size: int) -> None:
    model = model_of()
    local = model.layers[0]
    initial = [np.array(each) for each in local.get_weights()]
    optimizer = hvd.PartialDistributedOptimizer(optimizers.SGD(0.1), local_layers=local)
    ours = fit_together(model, optimizer, rank, size)
    gathered = hvd.allgather(np.stack([local.get_weights()[0]]))
    assert not np.allclose(gathered[0], gathered[1])
    shared = hvd.allgather(np.stack([ours.layers[-1].get_weights()[0]]))
    np.testing.assert_array_equal(shared[0], shared[1])
    assert not np.allclose(initial[0], local.get_weights()[0])


def test_local_gradients_are_scaled_like_averaged_gradients(rank: int, size: int) -> None:

    for scale in (True, False):
        layer = keras.layers.Dense(1, use_bias=False)
        optimizer = hvd.PartialDistributedOptimizer(
            optimizers.SGD(1.0), local_layers=[layer], scale_local_gradients=scale
        )
        layer.build((None, 1))  # after the layer was declared local
        layer.set_weights([np.zeros((1, 1))])
        optimizer.apply_gradients(zip(tensors([[[4.0]]]), layer.trainable_weights, strict=True))
        assert layer.get_weights()[0].item() == (-4.0 / size if scale else -4.0)
    trained = variables([[0.0]])
    optimizer = hvd.DistributedOptimizer(optimizers.SGD(1.0), scale_local_gradients=False)
    optimizer.register_local_var(trained[0])
    optimizer.apply_gradients(zip(tensors([[float(rank)]]), trained, strict=True))
    assert values_of(trained) == [[-float(rank)]]


def test_process_sets(rank: int, size: int) -> None:

    alone = hvd.add_process_set([0])
    try:
        trained = variables([[0.0]])
        optimizer = hvd.DistributedOptimizer(optimizers.SGD(1.0), process_set=alone)
        optimizer.apply_gradients(zip(tensors([[1.0 + rank]]), trained, strict=True))
        assert values_of(trained) == [[-1.0 - rank]]
    finally:
        hvd.remove_process_set(alone)


def test_batch_normalization_of_all_ranks(rank: int, size: int) -> None:
    def hidden(norm: Any) -> Callable[[], list[Any]]:
        dense = keras.layers.Dense
        return lambda: [dense(6), norm(momentum=0.9, epsilon=1e-4), dense(4, "tanh"), norm(momentum=0.9)]

    alone = fit_alone(model_of(hidden(keras.layers.BatchNormalization)), optimizers.SGD(0.1))
    model = model_of(hidden(hvd.SyncBatchNormalization))
    ours = fit_together(model, hvd.DistributedOptimizer(optimizers.SGD(0.1)), rank, size)
    assert_same_weights(ours, alone, 2e-5)
    np.testing.assert_allclose(ours.predict(INPUTS, verbose=0), alone.predict(INPUTS, verbose=0), atol=1e-4)


def test_batch_normalization_of_masked_steps(rank: int, size: int) -> None:
    if not hasattr(keras, "ops"):
        pytest.skip("BatchNormalization of Keras 2 takes no mask here")
    generator = np.random.default_rng(5)
    inputs = generator.normal(3.0, 2.0, (size, 2, 5, 3)).astype(np.float32)
    mask = generator.random((size, 2, 5)) < 0.6
    layer = hvd.SyncBatchNormalization(momentum=0.0)
    layer(inputs[rank], training=True, mask=mask[rank])
    used = inputs[mask]
    np.testing.assert_allclose(np.asarray(layer.moving_mean), used.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(np.asarray(layer.moving_variance), used.var(axis=0), rtol=1e-4)


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory() as name:
        yield Path(name)


def test_saving_and_loading_a_model(rank: int, size: int, folder: Path) -> None:
    original = model_of()
    fit_together(original, hvd.DistributedOptimizer(momentum()), rank, size)
    original.save(folder / "model.keras")

    # Keras loads a plain optimizer. hvd.load_model loads a distributed optimizer with the same state.
    plain = keras.models.load_model(folder / "model.keras")
    assert not hasattr(plain.optimizer, "register_local_var")
    loaded = hvd.load_model(folder / "model.keras")
    assert hasattr(loaded.optimizer, "register_local_var")
    assert int(loaded.optimizer.iterations.numpy()) == STEPS
    rows = own_rows(rank, size)
    for model in (original, loaded):
        model.fit(INPUTS[rows], TARGETS[rows], batch_size=8 // size, shuffle=False, verbose=0)
    assert_same_weights(loaded, original, 1e-6)


class OwnSGD(optimizers.SGD):  # type: ignore[misc,name-defined]
    pass


def own_loss(y_true: Any, y_pred: Any) -> Any:
    return (y_true - y_pred) ** 2


@pytest.mark.slow
def test_custom_optimizers_and_losses_are_loaded(rank: int, size: int, folder: Path) -> None:
    model = model_of()
    model.compile(hvd.DistributedOptimizer(OwnSGD(0.1, momentum=0.9)), own_loss)
    model.fit(INPUTS[:8], TARGETS[:8], verbose=0)
    model.save(folder / "model.keras")
    loaded = hvd.load_model(folder / "model.keras", custom_optimizers=[OwnSGD], custom_objects={"own_loss": own_loss})
    assert isinstance(loaded.optimizer, OwnSGD)
    assert hasattr(loaded.optimizer, "register_local_var")


def test_the_optimizer_keeps_its_class_and_state() -> None:
    schedule = optimizers.schedules.CosineDecay(0.1, 100)
    plain = optimizers.SGD(schedule, momentum=0.5, name="mine")
    distributed = hvd.DistributedOptimizer(plain)
    assert isinstance(distributed, optimizers.SGD)
    assert type(distributed).__name__ == type(plain).__name__
    assert distributed.get_config() == plain.get_config()
    assert distributed.iterations is plain.iterations, "the state must be shared, not copied"
    with pytest.raises(ValueError, match="DistributedOptimizer already"):
        hvd.DistributedOptimizer(distributed)
    with pytest.raises(ValueError, match="DistributedOptimizer already"):
        hvd.DistributedOptimizer(LossScaleOptimizer(distributed))


@pytest.mark.parametrize(
    "options",
    [
        *({"op": hvd.Adasum}, {"op": hvd.Sum, "gradient_predivide_factor": 2.0}, {"groups": -1}, {"groups": [3]}),
        *({"backward_passes_per_step": 0}, {"groups": "all"}),
    ],
    ids=str,
)
def test_options_that_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"Average|groups|backward_passes|predivide"):
        hvd.DistributedOptimizer(optimizers.SGD(0.1), **options)
    with pytest.raises(ValueError, match="layer"):
        hvd.PartialDistributedOptimizer(optimizers.SGD(0.1), local_layers=["dense"])
    with pytest.raises(ValueError, match="optimizer of Keras"):
        hvd.DistributedOptimizer(object())


def test_num_groups_is_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="num_groups"):
        hvd.DistributedOptimizer(optimizers.SGD(0.1), num_groups=2)
