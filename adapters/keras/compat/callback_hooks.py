"""Keras' ModelCheckpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def checkpoint_that_saves_by(save: Callable[[Any, Callable[[], None]], None]) -> type:
    """Returns a class that goes before ModelCheckpoint among the bases, and saves by `save(callback, original)`.

    `original()` is what ModelCheckpoint would do.

    Relies on: ModelCheckpoint calling `_save_model(epoch, batch, logs)` for each file that it may have to write.
    Tried with: all.
    Notices: the other base has no `_save_model`.
    Lost then: making a BestModelCheckpoint raises an AttributeError that says so.
    """

    class CheckpointThatSaves:
        def __init__(self, *arguments: Any, **options: Any) -> None:
            base: Any = super()
            if not hasattr(base, "_save_model"):
                raise AttributeError(
                    "BestModelCheckpoint cannot save models: this Keras' ModelCheckpoint has no _save_model; install "
                    "Keras 3.15 or 2.15"
                )
            base.__init__(*arguments, **options)

        def _save_model(self, *arguments: Any, **more: Any) -> None:
            base: Any = super()
            save(self, lambda: base._save_model(*arguments, **more))

    return CheckpointThatSaves
