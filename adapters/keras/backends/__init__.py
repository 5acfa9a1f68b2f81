"""What differs between Keras' backends: a module for each, of one shape.

`framework`: the adapter whose verbs are used. `reduce(gradients, variables, reduction)`: the gradients of all ranks.
`Passes(count, average)`: sums gradients over several backward passes. `tensor(value)`: anything as a tensor.
"""

from __future__ import annotations

import importlib
from types import ModuleType

import keras

from perseus_like.errors import UnavailableError

SUPPORTED = ("tensorflow", "torch")


def chosen() -> ModuleType:
    """The module of the backend that Keras runs on. UnavailableError for one that has none here."""
    name = keras.backend.backend()
    if name not in SUPPORTED:
        raise UnavailableError(
            f"Keras runs on its {name!r} backend, which cannot be used here; set KERAS_BACKEND to tensorflow or torch "
            "before keras is imported"
        )
    return importlib.import_module(f".{name}", __name__)
