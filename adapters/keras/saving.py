"""Models and files: how they are saved, and loaded with their optimizer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import keras

from perseus_like.whole_files import unfinished

from .optimizer import Compression, distribute


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """A saved model, whose optimizer goes on from the state it was saved with as a DistributedOptimizer.

    Args:
        filepath: what `keras.models.load_model` takes.
        custom_optimizers: classes of the user's that the optimizer may be of.
        custom_objects: other names that the file may refer to.
        compression: as DistributedOptimizer has it.
        legacy_opts: there for Horovod's sake; `keras.optimizers.legacy` is found with and without.
    """
    return load(keras, filepath, custom_optimizers, custom_objects, compression)


def load(
    keras_module: Any,
    filepath: Any,
    custom_optimizers: Iterable[type] | None,
    custom_objects: Mapping[str, Any] | None,
    compression: Any,
) -> Any:
    """The same for one Keras or another."""
    objects = {each.__name__: each for each in custom_optimizers or ()}
    model = keras_module.models.load_model(filepath, custom_objects={**objects, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = distribute(model.optimizer, compression=compression)
    return model


class SavedWhole:
    """A model whose files have their names when they are written to the end.

    Folders (of TensorFlow's formats in Keras 2) and what is not on this machine are written to as they are.
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
    return unfinished(Path(path)) if is_a_file else contextlib.nullcontext(path)
