"""The frameworks of the adapters. `from perseus_like.frameworks import torch` says how to install a missing one."""

from __future__ import annotations

import importlib
from typing import Any

# The name of each framework, and the extra of this distribution that installs it.
_NEEDED = {
    "torch": ("PyTorch", "torch"),
    "tensorflow": ("TensorFlow", "tensorflow"),
    "keras": ("Keras", "tensorflow"),
    "mxnet": ("MXNet", "mxnet"),
}


def __getattr__(name: str) -> Any:
    if name not in _NEEDED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:  # the framework itself lacks something
            raise
        title, extra = _NEEDED[name]
        text = f"perseus_like.{name} needs {title}: pip install 'perseus-like[{extra}]'"
        raise ModuleNotFoundError(text, name=name) from None
