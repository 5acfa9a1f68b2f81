"""The elastic state of a model and its optimizer, for frameworks in which both are made of variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import objects
from ..session import session
from . import variables
from .partial_sums import Kept, PartialSums, mean_over_ranks, partial_sums_of
from .state import ObjectState

Values = list[Any]


class VariablesState(ObjectState):
    """An elastic state of variables with `numpy()` and `assign(value)`, and of plain values, which are its attributes.

    Args:
        groups: for each name, a function that returns a list of variables. The list may grow during training.
        kwargs: further attributes and their values, which can be pickled.

    Examples:
        >>> from perseus_like.elastic import VariablesState
        >>> state = VariablesState({"weights": lambda: []}, epoch=0)
        >>> state.epoch
        0
    """

    def __init__(self, groups: dict[str, Callable[[], Sequence[Any]]], **kwargs: Any) -> None:
        self._groups = groups
        self._keep()
        super().__init__(objects.broadcast_object, lambda: int(session.core.rank()), **kwargs)

    def save(self) -> None:
        self._keep()
        super().save()

    def restore(self) -> None:
        for name, get in self._groups.items():
            self._write(get(), self._kept[name])
        self._write_sums(self._kept_sums)
        super().restore()

    def sync(self) -> None:
        for name, get in self._groups.items():
            group = get()
            values = variables.from_root(self._read(group), 0, name)
            if session.core.rank() != 0:
                self._write(group, values)
        if self._partial_sums() is not None:
            self._write_sums(mean_over_ranks(self._read_sums(), "partial_sums"))
        super().sync()
        self._keep()  # last, so that all ranks go back to the same commit if an earlier step fails

    def kept(self) -> Any:
        return self._kept, self._kept_sums, super().kept()

    def take(self, kept: Any) -> None:
        self._kept, self._kept_sums, plain = kept
        super().take(plain)

    def _keep(self) -> None:
        self._kept = {name: self._read(get()) for name, get in self._groups.items()}
        self._kept_sums = self._read_sums()

    def _partial_sums(self) -> PartialSums | None:
        """Returns the sums of gradients over backward passes that belong to the state."""
        return None

    def _trained(self) -> Sequence[Any]:
        """Returns the variables of these gradients, in the same order on all ranks."""
        return []

    def _read_sums(self) -> Kept:
        sums = self._partial_sums()
        return {} if sums is None else sums.read(self._trained())

    def _write_sums(self, kept: Kept) -> None:
        sums = self._partial_sums()
        if sums is not None:
            sums.write(self._trained(), kept)

    def _read(self, group: Sequence[Any]) -> Values:
        return variables.read(group)

    def _write(self, group: Sequence[Any], values: Values) -> None:
        variables.write(group, values)


class ModelState(VariablesState):
    """An elastic state of a model and its optimizer, and of plain values. All are attributes of the state.

    Args:
        model: a built model: one with `weights` and `trainable_variables`.
        optimizer: its optimizer. The default is `model.optimizer`.
        kwargs: further attributes and their values, which can be pickled.

    Raises:
        ValueError: the model is not built.

    Examples:
        >>> from perseus_like.elastic import ModelState
        >>> state = ModelState(model, optimizer, epoch=0)  # doctest: +SKIP
    """

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

    def _partial_sums(self) -> PartialSums | None:
        return partial_sums_of(self.optimizer)

    def _trained(self) -> Sequence[Any]:
        found: Sequence[Any] = self.model.trainable_variables
        return found
