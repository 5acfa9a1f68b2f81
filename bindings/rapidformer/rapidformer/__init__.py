"""Training of transformers by switches. The names are imported at their first use, because torch takes seconds."""

from __future__ import annotations

import importlib
from typing import Any

_PLACES = {
    "RapidformerEngine": "engine",
    "Finetuner": "trainer",
    "PreTrainer": "trainer",
    "Pretrainer": "trainer",
    "build_data_loader": "loading",
    "build_train_valid_test_datasets_for_huggingface": "pretraining_data",
    "build_pretrain_huggingface_bert_datasets": "pretraining_data",
    "get_args": "state",
    "get_logger": "state",
    "get_timers": "state",
    "get_tokenizer": "state",
    "InputError": "options",
}
__all__ = [*_PLACES, "mpu"]


def __getattr__(name: str) -> Any:
    if name == "mpu":
        return importlib.import_module(".mpu", __name__)
    if name in _PLACES:
        return getattr(importlib.import_module(f".{_PLACES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
