"""`python -m perseus_like.keras.compat`: checks the private parts of Keras that the functions rely on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from perseus_like.compat_probes import expect, main

from . import optimizers

_IS_KERAS_3 = int(keras.__version__.partition(".")[0]) >= 3


def _parameters(function: Any) -> list[str]:
    return list(inspect.signature(inspect.unwrap(function)).parameters)


def _built() -> tuple[Any, Any]:
    """Returns an optimizer with momentum and its one variable."""
    variable: Any = keras.Variable(np.ones(2, np.float32)) if _IS_KERAS_3 else None
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    if variable is None:
        import tensorflow as tf

        variable = tf.Variable(np.ones(2, np.float32))
    optimizer.build([variable])
    return optimizer, variable


def _generation_of() -> None:
    found = optimizers.generation_of(keras.optimizers.SGD)
    expected = optimizers.KERAS_3 if _IS_KERAS_3 else optimizers.KERAS_2
    expect(found == expected, f"an optimizer is taken for one of {found}")
    if not _IS_KERAS_3:
        legacy = optimizers.generation_of(keras.optimizers.legacy.SGD)
        expect(legacy == optimizers.LEGACY, f"a legacy optimizer is taken for one of {legacy}")


def _variables_of() -> None:
    if _IS_KERAS_3:
        optimizer, variable = _built()
        expect(optimizers.variables_of(optimizer) == [variable], "Optimizer._trainable_variables has other variables")


def _count_step() -> None:
    if _IS_KERAS_3:
        optimizer, _ = _built()
        optimizers.count_step(optimizer)
        steps = keras.ops.convert_to_numpy(optimizer.iterations)
        expect(int(steps) == 1, "Optimizer._iterations is not the number of steps")


def _velocities_of() -> None:
    optimizer, variable = _built()
    shapes = [tuple(each.shape) for each in optimizers.velocities_of(optimizer)]
    expect(shapes == [tuple(variable.shape)], "an optimizer with momentum has no list of velocities")


def _wrap_loss_scale_apply() -> None:
    if _IS_KERAS_3:
        names = _parameters(keras.optimizers.LossScaleOptimizer.apply)
        expect(names == ["self", "grads", "trainable_variables"], "LossScaleOptimizer.apply has other parameters")


def _layer_with_moments() -> None:
    seen: list[int] = []

    class Layer(keras.layers.BatchNormalization):  # type: ignore[misc]
        def _moments(self, *arguments: Any, **more: Any) -> Any:
            seen.append(len(arguments) + len(more))
            return super()._moments(*arguments, **more)

    options = {} if _IS_KERAS_3 else {"fused": False}
    Layer(**options)(np.ones((2, 3), np.float32), training=True)
    expect(bool(seen), "BatchNormalization does not call _moments")
    expect(seen[-1] >= 2, "BatchNormalization._moments has other parameters")


def _checkpoint_that_saves_by() -> None:
    method = getattr(keras.callbacks.ModelCheckpoint, "_save_model", None)
    expect(method is not None, "ModelCheckpoint._save_model is missing")
    expect(
        _parameters(method) == ["self", "epoch", "batch", "logs"], "ModelCheckpoint._save_model has other parameters"
    )


# The probe of each function that relies on a private part.
PROBES: dict[str, Callable[[], None]] = {
    "optimizers.generation_of": _generation_of,
    "optimizers.variables_of": _variables_of,
    "optimizers.count_step": _count_step,
    "optimizers.velocities_of": _velocities_of,
    "optimizers.wrap_loss_scale_apply": _wrap_loss_scale_apply,
    "layers.layer_with_moments": _layer_with_moments,
    "callback_hooks.checkpoint_that_saves_by": _checkpoint_that_saves_by,
}

if __name__ == "__main__":
    main(f"Keras {keras.__version__}", PROBES)
