"""GradScaler: calls of optimizers' methods around its own."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch


@functools.cache
def around_scalers() -> None:
    """Makes GradScaler call these methods of the optimizers that have them.

    `GradScaler.unscale_(optimizer)` calls `optimizer._before_unscaling()` first and `optimizer._after_unscaling()` at
    its end. `GradScaler.step(optimizer)` calls `optimizer._before_scaler_step()` before it looks for infinities, and
    `optimizer._after_scaler_step()` when it has ended, also if it has skipped the step. `GradScaler.update()` calls
    `optimizer._after_scale_change(factor)` of the optimizers that it has stepped, if its scale has changed by that
    factor.

    Relies on: `unscale_`, `step` and `update` of `torch.amp.GradScaler`, and of `torch.cuda.amp.GradScaler` in torch
    2.1 and 2.2, being methods that can be replaced.
    Tried with: 2.13.
    Notices: `GradScaler` does not call the methods.
    Lost then: each rank looks for infinities in its own gradients, so that ranks may skip different steps, `unscale_`
    divides gradients that are still being reduced, a sharded optimizer on several hosts raises an error after it, or
    what a compression leaves out keeps its scale if the scale of the gradients changes.
    """
    for scaler in {getattr(torch.amp, "GradScaler", None), torch.cuda.amp.GradScaler}:
        if scaler is not None and "unscale_" in vars(scaler):
            _replace_methods(scaler)


def _replace_methods(scaler: Any) -> None:
    unscale, scaler_step, scaler_update = scaler.unscale_, scaler.step, scaler.update
    stepped: weakref.WeakKeyDictionary[Any, weakref.WeakSet[Any]] = weakref.WeakKeyDictionary()  # by scaler

    @functools.wraps(unscale)
    def unscale_(self: Any, optimizer: Any) -> None:
        if self.is_enabled():
            _call(optimizer, "_before_unscaling")
        unscale(self, optimizer)
        _call(optimizer, "_after_unscaling")

    @functools.wraps(scaler_step)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if hasattr(optimizer, "_after_scale_change"):
            stepped.setdefault(self, weakref.WeakSet()).add(optimizer)
        try:
            if self.is_enabled():
                _call(optimizer, "_before_scaler_step")
            return scaler_step(self, optimizer, *args, **kwargs)
        finally:
            _call(optimizer, "_after_scaler_step")

    @functools.wraps(scaler_update)
    def update(self: Any, *args: Any, **kwargs: Any) -> None:
        optimizers = list(stepped.get(self, ()))
        before = self.get_scale() if optimizers else 1.0
        scaler_update(self, *args, **kwargs)
        factor = self.get_scale() / before if optimizers else 1.0
        for optimizer in optimizers if factor != 1.0 else ():
            optimizer._after_scale_change(factor)

    scaler.unscale_, scaler.step, scaler.update = unscale_, step, update


def _call(optimizer: Any, method: str) -> None:
    found = getattr(optimizer, method, None)
    if found is not None:
        found()
