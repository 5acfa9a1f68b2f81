"""Touches gradients and parameters as programs do, at each moment of a step, and compares with one process."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from perseus_like.errors import DisagreementError

from .training import grad_scaler

BATCH = 4  # examples per rank
STEPS = 3
LEARNING, LATER = 0, 1  # the steps in which a program touches something
MOMENTS = ("before backward", "between passes", "between backward and step", "after step")

Wrap = Callable[[Any, bool, bool], tuple[Any, Any]]


def build() -> Any:
    torch.manual_seed(3)
    convolution = nn.Conv2d(2, 4, 2, padding=1)
    return nn.Sequential(
        nn.Unflatten(1, (2, 2, 2)), convolution, nn.Tanh(), nn.Flatten(), nn.Linear(36, 3), nn.Linear(3, 3)
    )


def _each_gradient(change: Callable[[Any], None]) -> Callable[..., None]:
    def touch(model: Any, *_: Any) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    change(parameter)

    return touch


def _remove(parameter: Any) -> None:
    parameter.grad = None


def _clone(parameter: Any) -> None:
    parameter.grad = parameter.grad.clone()


def _replace_data(parameter: Any) -> None:
    parameter.grad.data = parameter.grad.clone()


def _set(parameter: Any) -> None:
    parameter.grad.set_(parameter.grad.clone())


def _halve(parameter: Any) -> None:
    parameter.grad.mul_(0.5)


def _unscale(model: Any, optimizer: Any, scaler: Any) -> None:
    scaler.unscale_(optimizer)


ACTIONS: dict[str, Callable[..., Any]] = {
    "grad = None": _each_gradient(_remove),
    "grad = clone": _each_gradient(_clone),
    "grad.data =": _each_gradient(_replace_data),
    "grad.set_": _each_gradient(_set),
    "grad.mul_": _each_gradient(_halve),
    "to(dtype) and back": lambda model, *_: model.double().float(),
    "channels_last": lambda model, *_: model.to(memory_format=torch.channels_last),
    "freeze": lambda model, *_: model[1].weight.requires_grad_(False),
    "unfreeze": lambda model, *_: model[5].weight.requires_grad_(True),
    "unscale_": _unscale,
    "clip": lambda model, *_: nn.utils.clip_grad_norm_(model.parameters(), 0.01),
}


def cells() -> Iterator[tuple[int, str, str, bool]]:
    """Yields the step, the moment, the action, and whether all ranks do it."""
    for step, moment, action, everywhere in itertools.product((LEARNING, LATER), MOMENTS, ACTIONS, (True, False)):
        # GradScaler divides once per step, when all its gradients are there.
        if action != "unscale_" or moment == "between backward and step":
            yield step, moment, action, everywhere


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@contextlib.contextmanager
def warnings_of_the_library() -> Iterator[list[str]]:
    from perseus_like.torch.tensors import shared_memory

    handler = _Warnings()
    logger = logging.getLogger("perseus_like")
    shared_memory._warned.clear()  # each cell is a program of its own
    logger.addHandler(handler)
    try:
        yield handler.texts
    finally:
        logger.removeHandler(handler)


def train(wrap: Wrap, cell: tuple[int, str, str, bool], rank: int, size: int, touches: bool) -> list[Any]:
    """Returns the weights after some steps. `rank`: the part of each batch; None for all of it."""
    touched_step, moment, action, _ = cell
    two_passes = moment == "between passes"
    uses_scaler = action == "unscale_"
    model = build()
    model[5].weight.requires_grad_(action != "unfreeze")
    wrapped, optimizer = wrap(model, two_passes, uses_scaler)
    scaler = grad_scaler(init_scale=8.0, enabled=uses_scaler)

    def at(now: str, step: int) -> None:
        if touches and step == touched_step and now == moment:
            ACTIONS[action](model, optimizer, scaler)

    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=moment != "before backward")
        at("before backward", step)
        for number in range(2 if two_passes else 1):
            last = number == (1 if two_passes else 0)
            generator = torch.Generator().manual_seed(100 * step + number)
            inputs = torch.randn(BATCH * size, 8, generator=generator)
            targets = torch.randn(BATCH * size, 3, generator=generator)
            mine = slice(None) if rank < 0 else slice(rank * BATCH, (rank + 1) * BATCH)
            with contextlib.nullcontext() if last or not hasattr(wrapped, "no_sync") else wrapped.no_sync():
                scaler.scale((wrapped(inputs[mine]) - targets[mine]).square().mean()).backward()
            if not last:
                at("between passes", step)
        at("between backward and step", step)
        scaler.step(optimizer)
        scaler.update()
        at("after step", step)
    return [parameter.detach().clone() for parameter in model.parameters()]


def plain(model: Any, two_passes: bool, uses_scaler: bool) -> tuple[Any, Any]:
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def failures(
    wrap: Wrap,
    rank: int,
    size: int,
    gather: Callable[[Any], list[Any]],
    may_be_apart: Callable[[int, str, str, bool], bool] = lambda *_: False,
    may_fail: Callable[[str], bool] = lambda action: False,
) -> list[str]:
    """Returns the cells that are wrong: weights unlike those of one process, or unlike on two ranks, and no warning.

    `gather`: returns the objects of all ranks. `may_be_apart(*cell)`: whether ranks may have unlike weights, if all
    ranks warn. `may_fail(action)`: whether an action of all ranks may be an error.
    """
    wrong = []
    for cell in cells():
        step, moment, action, everywhere = cell
        error = ""
        with warnings_of_the_library() as texts:
            try:
                weights = train(wrap, cell, rank, size, everywhere or rank == size - 1)
            except (DisagreementError, RuntimeError) as failure:
                weights, error = [], str(failure)
        everybody = gather((weights, [text for text in texts if "has changed gradients" in text], error))
        noticed = any(warnings for _, warnings, _ in everybody)
        name = f"{action}, {moment}, step {step}, {'all ranks' if everywhere else 'one rank'}"
        if any(bool(theirs) != bool(error) for *_, theirs in everybody) or (
            error and everywhere and not may_fail(action)
        ):
            wrong.append(f"{name}: {[theirs for *_, theirs in everybody]}")
        elif not (noticed and may_be_apart(*cell)) and any(
            not torch.equal(a, b) for other, *_ in everybody for a, b in zip(weights, other, strict=True)
        ):
            wrong.append(f"{name}: ranks are apart")
        # Clipping a part of a sum differs from clipping the sum.
        is_local = action == "clip" and moment == "between passes"
        if everywhere and not (noticed or error or is_local):
            alone = train(plain, cell, -1, size, True)
            apart = max(float((a - b).abs().max()) for a, b in zip(weights, alone, strict=True))
            if apart > 1e-5:
                wrong.append(f"{name}: {apart:.2g} from one process")
        if not error and noticed and not all(warnings for _, warnings, _ in everybody):
            wrong.append(f"{name}: some ranks do not warn: {[warnings for _, warnings, _ in everybody]}")
        if noticed and (moment != "between backward and step" or action in ("freeze", "unfreeze", "unscale_")):
            wrong.append(f"{name}: a false alarm: {everybody}"[:300])
    return wrong
