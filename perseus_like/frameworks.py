"""Adapters by the name of their framework, for code that serves several: Keras has its backends."""

from __future__ import annotations

import importlib
from types import ModuleType


def adapter(framework: str) -> ModuleType:
    """`perseus_like.<framework>`, whose verbs have Horovod's names. ImportError where the framework is missing."""
    return importlib.import_module(f".{framework}", __package__)
