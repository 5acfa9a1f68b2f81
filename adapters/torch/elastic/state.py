"""Elastic state of torch: models, optimizers, samplers and objects with `state_dict`, each by a handler of its own."""

from __future__ import annotations

import copy
from typing import Any, Protocol, runtime_checkable

import torch

from perseus_like import rank
from perseus_like.elastic import ObjectState
from perseus_like.elastic.state import require_intact_results

from ..functions import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters
from ..sharded_optimizer.sharded_update import leave_all
from .partial_gradients import PartialGradients
from .sampler import ElasticSampler


class StateHandler:
    """Saves, restores and synchronizes one value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        raise NotImplementedError

    def restore(self) -> None:
        raise NotImplementedError

    def sync(self) -> None:
        raise NotImplementedError

    def reset(self) -> None:
        """Updates what depends on the number of ranks. A new session has just started, and `sync` may not follow."""

    def set_value(self, value: Any) -> None:
        """Replaces the value, and saves it."""
        self.value = value
        self.save()

    def kept(self) -> dict[str, Any]:
        """Returns what the last `save` keeps, to be pickled."""
        return {name: kept for name, kept in vars(self).items() if name != "value"}

    def take(self, kept: dict[str, Any]) -> None:
        """Takes what the handler of another process has kept."""
        vars(self).update(kept)


@runtime_checkable
class Stateful(Protocol):
    """The interface of learning-rate schedules, GradScaler, and many other objects."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


class DictStateHandler(StateHandler):
    """The handler of objects with `state_dict` and `load_state_dict`.

    The object itself stays the same, so that a schedule keeps its optimizer.
    """

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        # This loads a copy, because optimizers keep the tensors that they load.
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self) -> None:
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), root_rank=0))
        self.save()


class ModelStateHandler(DictStateHandler):
    """The handler of torch.nn.Module."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)

    def sync(self) -> None:
        broadcast_parameters(self.value.state_dict(), root_rank=0)
        self.save()


class OptimizerStateHandler(DictStateHandler):
    """The handler of torch.optim.Optimizer. Gradients that no step has used yet are a part of the state."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._partial = PartialGradients(optimizer)
        self._is_new = True  # has no state of the training yet
        super().__init__(optimizer)

    def save(self) -> None:
        super().save()
        self._gradients = self._partial.copies()

    def restore(self) -> None:
        super().restore()
        self._partial.put(self._gradients)

    def sync(self) -> None:
        gradients = self._partial.mean_over_ranks(self._partial.copies(), self._is_new)
        broadcast_optimizer_state(self.value, root_rank=0)
        if gradients is not None:
            self._partial.put(gradients)
        self._is_new = False
        self.save()

    def reset(self) -> None:
        self._partial.drop_used()

    def set_value(self, value: torch.optim.Optimizer) -> None:
        self._partial = PartialGradients(value)
        super().set_value(value)

    def kept(self) -> dict[str, Any]:
        return {"_saved": self._saved, "_gradients": self._gradients}

    def take(self, kept: dict[str, Any]) -> None:
        super().take(kept)
        self._is_new = False


class SamplerStateHandler(DictStateHandler):
    """The handler of ElasticSampler."""

    def __init__(self, sampler: ElasticSampler) -> None:
        super().__init__(sampler)

    def reset(self) -> None:
        self.value.reset()


Registry = list[tuple[type, type[StateHandler]]]
_registry: Registry = [
    (ElasticSampler, SamplerStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (torch.nn.Module, ModelStateHandler),
    (Stateful, DictStateHandler),
]


def get_handler_registry() -> Registry:
    """Returns types and their handlers; the first type that fits a value is used."""
    return _registry


def set_handler_registry(registry: Registry) -> None:
    global _registry
    _registry = registry


def _handler_of(value: Any) -> StateHandler | None:
    for kind, handler in _registry:
        if isinstance(value, kind):
            return handler(value)  # type: ignore[call-arg,unused-ignore]
    return None


class TorchState(ObjectState):
    """Elastic state of a model, an optimizer, a schedule, samplers, and further values by name (epoch, batch, …).

    All become attributes. An assignment of another model, optimizer, schedule or sampler saves it.

    Args:
        model: the model, or None.
        optimizer: the optimizer, or None.
        kwargs: further attributes. Models, optimizers, ElasticSamplers and all other objects with `state_dict()` and
            `load_state_dict()` are saved by these methods, other values as deep copies.

    Examples:
        >>> state = hvd.elastic.TorchState(torch.nn.Linear(2, 1), epoch=0)
        >>> state.epoch = 5
        >>> state.restore()  # the values of the last commit
        >>> state.epoch
        0
    """

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **kwargs: Any
    ) -> None:
        given = {"model": model, "optimizer": optimizer, **kwargs}
        handlers = {name: _handler_of(value) for name, value in given.items()}
        self._handlers = {name: handler for name, handler in handlers.items() if handler is not None}
        plain = {
            name: value
            for name, value in given.items()
            if name not in self._handlers and not (value is None and name in ("model", "optimizer"))
        }
        super().__init__(broadcast_object, rank, **plain)
        for name in given.keys() - plain.keys():
            object.__setattr__(self, name, given[name])

    def save(self) -> None:
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        leave_all()  # ranks of one host may return to different commits
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        # Handlers save at the end. If a later one fails, all return to the same commit.
        before = [(handler, dict(vars(handler))) for handler in self._handlers.values()]
        try:
            for handler in self._handlers.values():
                handler.sync()
            super().sync()
            require_intact_results()
        except BaseException:
            for handler, kept in before:
                vars(handler).update(kept)
            raise

    def reset(self) -> None:
        for handler in self._handlers.values():
            handler.reset()

    def kept(self) -> Any:
        return {name: handler.kept() for name, handler in self._handlers.items()}, super().kept()

    def take(self, kept: Any) -> None:
        of_handlers, plain = kept
        for name, of_handler in of_handlers.items():
            self._handlers[name].take(of_handler)
        super().take(plain)

    def __setattr__(self, name: str, value: Any) -> None:
        handler = self.__dict__.get("_handlers", {}).get(name)
        if handler is not None:
            handler.set_value(value)
        super().__setattr__(name, value)


__all__ = [
    "DictStateHandler",
    "ElasticSampler",
    "ModelStateHandler",
    "ObjectState",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateHandler",
    "Stateful",
    "TorchState",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "get_handler_registry",
    "rank",
    "set_handler_registry",
]
