"""The elastic state of a model and its optimizer, where both are made of variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import basics, objects, variables
from .state import ObjectState

Values = list[Any]


class VariablesState(ObjectState):
    """Variables that have `numpy()` and `assign(value)`, and whatever else is given by name (epoch, batch, …).

    `groups`: a name for each list of variables, and a function that gives it: lists may grow while training.
    """

    def __init__(self, groups: dict[str, Callable[[], Sequence[Any]]], **kwargs: Any) -> None:
        self._groups = groups
        self._keep()
        super().__init__(objects.broadcast_object, basics.rank, **kwargs)

    def save(self) -> None:
        self._keep()
        super().save()

    def restore(self) -> None:
        for name, get in self._groups.items():
            self._write(get(), self._kept[name])
        super().restore()

    def sync(self) -> None:
        for name, get in self._groups.items():
            group = get()
            values = variables.from_root(self._read(group), 0, name)
            if basics.rank() != 0:
                self._write(group, values)
        super().sync()
        self._keep()  # last: should something fail, all go back to the same commit

    def kept(self) -> Any:
        return self._kept, super().kept()

    def take(self, kept: Any) -> None:
        self._kept, plain = kept
        super().take(plain)

    def _keep(self) -> None:
        self._kept = {name: self._read(get()) for name, get in self._groups.items()}

    def _read(self, group: Sequence[Any]) -> Values:
        return variables.read(group)

    def _write(self, group: Sequence[Any], values: Values) -> None:
        variables.write(group, values)


class ModelState(VariablesState):
    """A model, which lists its variables as `weights`, and its optimizer; by default the one it was compiled with."""

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        if not getattr(model, "built", True):
            raise ValueError("the model has no weights yet; call model.build(input_shape) before it becomes a state")
        self.model = model
        self.optimizer = model.optimizer if optimizer is None else optimizer
        groups = {
            "weights": lambda: self.model.weights,
            "optimizer_variables": lambda: variables.of_optimizer(self.optimizer, self.model.trainable_variables),
        }
        super().__init__(groups, **kwargs)
