"""Megatron's indexed data: the files PREFIX.bin and PREFIX.idx."""

from __future__ import annotations

import importlib
import warnings
from typing import Any


def indexed_dataset() -> Any:
    """Returns the module of megatron-core that reads and writes the files."""
    with warnings.catch_warnings():
        # At import, megatron-core warns that its optimizers are slow without Transformer Engine. They are not used.
        warnings.simplefilter("ignore")
        return importlib.import_module("megatron.core.datasets.indexed_dataset")


def open_indexed(prefix: str) -> Any:
    """Opens PREFIX.bin and PREFIX.idx."""
    return indexed_dataset().IndexedDataset(prefix, mmap=True)
