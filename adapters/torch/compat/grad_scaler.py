"""GradScaler: changes of its scale."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch


@functools.cache
def rescale_with_scaler(of_optimizer: Callable[[Any], Any]) -> None:
    """Makes GradScalers call `rescale(factor)` of an object when their scale has changed by a factor.

    The objects are those that `of_optimizer(optimizer)` returns for the optimizers that the scaler has stepped.
    `of_optimizer` returns None for an optimizer without such an object.

    Relies on: `GradScaler.step(optimizer, …)` and `GradScaler.update(…)` being methods that can be replaced.
    Tried with: 2.13. In torch 2.1 and 2.2, these are methods of the GradScaler for CUDA.
    Notices: `GradScaler.step` or `GradScaler.update` does not call the functions.
    Lost then: what a compression leaves out keeps its scale if the scale of the gradients changes.
    """
    scaler_class: Any = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
    step, update = scaler_class.step, scaler_class.update
    scaled: weakref.WeakKeyDictionary[Any, weakref.WeakSet[Any]] = weakref.WeakKeyDictionary()  # by scaler

    @functools.wraps(step)
    def step_and_note(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        found = of_optimizer(optimizer)
        if found is not None:
            scaled.setdefault(self, weakref.WeakSet()).add(found)
        return step(self, optimizer, *args, **kwargs)

    @functools.wraps(update)
    def update_and_rescale(self: Any, *args: Any, **kwargs: Any) -> None:
        found = list(scaled.get(self, ()))
        before = self.get_scale() if found else 1.0
        update(self, *args, **kwargs)
        factor = self.get_scale() / before if found else 1.0
        for each in found if factor != 1.0 else ():
            each.rescale(factor)

    scaler_class.step, scaler_class.update = step_and_note, update_and_rescale
