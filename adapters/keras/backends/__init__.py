"""The differences between Keras' backends: one module for each backend, with the same functions and classes.

`framework` is the adapter whose collectives are used. `Reducer` reduces gradients over all ranks. `GradientSums`
sums gradients over several backward passes. `tensor(value)` converts a value to a tensor.
"""

from __future__ import annotations

import importlib
from types import ModuleType

import keras

from perseus_like.errors import UnavailableError

SUPPORTED = ("tensorflow", "torch")


def chosen() -> ModuleType:
    """Returns the module of the backend that Keras uses. Raises UnavailableError for a backend without a module."""
    name = keras.backend.backend()
    if name not in SUPPORTED:
        raise UnavailableError(
            f"perseus_like.keras does not work on Keras' {name!r} backend; set KERAS_BACKEND to tensorflow or torch "
            "before keras is imported"
        )
    return importlib.import_module(f".{name}", __name__)
