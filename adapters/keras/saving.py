"""Loading of models with a DistributedOptimizer, and atomic saving."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import keras

from perseus_like.host_facts import replacing

from .optimizer import Compression, DistributedOptimizer


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Returns a saved model. Its optimizer is a DistributedOptimizer with the saved state.

    Args:
        filepath: the path, as for `keras.models.load_model`.
        custom_optimizers: further classes of optimizers that the file may refer to.
        custom_objects: further objects, by name, that the file may refer to.
        compression: the compression of the DistributedOptimizer.
        legacy_opts: ignored; an argument of Horovod.

    Returns:
        The model, compiled as it was saved.

    Raises:
        ValueError: the file is not there, or refers to a class that is not known.

    Examples:
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD()), loss="mse")
        >>> model.save("/tmp/model.keras")
        >>> loaded = hvd.load_model("/tmp/model.keras")
    """
    return load(keras, filepath, custom_optimizers, custom_objects, compression)


def load(
    keras_module: Any,
    filepath: Any,
    custom_optimizers: Iterable[type] | None,
    custom_objects: Mapping[str, Any] | None,
    compression: Any,
) -> Any:
    """Does the same as `load_model`, for a given variant of Keras."""
    objects = {each.__name__: each for each in custom_optimizers or ()}
    model = keras_module.models.load_model(filepath, custom_objects={**objects, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    return model


class SavedWhole:
    """A model that writes its files under other names, and renames them when they are complete.

    Folders (TensorFlow's formats in Keras 2) and remote files are written directly.
    """

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def save(self, filepath: Any, *arguments: Any, **more: Any) -> None:
        with _unfinished(str(filepath)) as path:
            self._model.save(str(path), *arguments, **more)

    def save_weights(self, filepath: Any, *arguments: Any, **more: Any) -> None:
        with _unfinished(str(filepath)) as path:
            self._model.save_weights(str(path), *arguments, **more)


def _unfinished(path: str) -> contextlib.AbstractContextManager[Any]:
    is_a_file = path.endswith((".keras", ".h5", ".hdf5")) and "://" not in path
    return replacing(Path(path)) if is_a_file else contextlib.nullcontext(path)
