"""Where the gradients of one owner lie: in buckets that they share, or, the large ones, where autograd has put them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from perseus_like.gradients import Layout
from perseus_like.process_sets import ProcessSet

from .gradient_memory import Kind, allocate, dense_strides, register
from .in_place import InPlace


@dataclass(frozen=True)
class Contents:
    """A bucket, for those who communicate it by themselves."""

    number: int
    row: torch.Tensor  # all of it, with gaps between gradients, which are 0
    gradients: list[torch.Tensor]  # views of the row
    parameters: list[torch.Tensor]
    is_last: bool


class Places:
    """Gradients by their place in the owner's list of parameters, buckets by their number in the layout."""

    def __init__(
        self, parameters: list[torch.Tensor], names: list[str], fills_in: bool, process_set: ProcessSet
    ) -> None:
        """The lists are the owner's, and may grow."""
        self._parameters = parameters
        self._names = names
        self.views: list[torch.Tensor | None] = []  # None: not in a bucket
        self.in_place = InPlace(fills_in)
        self._process_set = process_set
        self._registered: list[object] = []  # goes before the memory
        self._memory: dict[Kind, torch.Tensor] = {}
        self._flats: list[torch.Tensor | None] = []  # per bucket; None: a gradient that stays where it is
        self._members: list[list[int]] = []  # per bucket

    @property
    def buckets(self) -> int:
        return len(self._flats)

    def forget(self) -> None:
        """Nothing is in a bucket any more."""
        self.views[:] = [None] * len(self._parameters)

    def clear(self) -> None:
        self.views.clear()
        self._flats.clear()
        self._registered.clear()
        self._memory.clear()

    def row(self, number: int) -> torch.Tensor:
        flat = self._flats[number]
        if flat is not None:
            return flat
        (index,) = self._members[number]
        return self.in_place.row(index, self._names[index])

    def contents(self, number: int) -> Contents:
        row = self.row(number)
        parameters = [self._parameters[index] for index in self._members[number]]
        if self._flats[number] is None:
            gradients = [row.as_strided(parameters[0].shape, dense_strides(parameters[0]))]
        else:
            gradients = [view for index in self._members[number] if (view := self.views[index]) is not None]
        return Contents(number, row, gradients, parameters, number + 1 == len(self._flats))

    def show(self, index: int) -> None:
        """Gives the parameter what the other ranks have computed for it."""
        view = self.views[index]
        if index in self.in_place:
            self.in_place.show(index)
        elif view is not None and self._parameters[index].requires_grad:
            self._parameters[index].grad = view

    def scale(self, factor: float) -> None:
        """Multiplies what was reduced."""
        self.in_place.scale(factor)
        for flat in self._flats:
            if flat is not None:
                flat.mul_(factor)

    def use(self, layout: Layout[Kind]) -> None:
        """Moves gradients to where the layout wants them."""
        self._registered.clear()
        for kind, elements in layout.totals.items():
            old = self._memory.get(kind)
            if old is None or old.numel() < elements:
                self._memory[kind] = allocate(elements, kind)
        self._registered = [register(memory, self._process_set) for memory in self._memory.values()]
        self._flats = []
        self._members = [bucket.members for bucket in layout.buckets]
        moved: list[tuple[int, torch.Tensor]] = []
        apart = [bucket.members[0] for bucket in layout.buckets if bucket.is_alone]
        self.in_place.use({index: self._parameters[index] for index in apart})
        for bucket in layout.buckets:
            if bucket.is_alone:
                self._flats.append(None)
                continue
            memory = self._memory[bucket.kind]
            self._flats.append(memory.narrow(0, bucket.start, bucket.elements))
            for index, offset in zip(bucket.members, bucket.offsets, strict=True):
                shape, strides = self._parameters[index].shape, dense_strides(self._parameters[index])
                moved.append((index, memory.as_strided(shape, strides, memory.storage_offset() + offset)))
        self._move(moved)

    def _move(self, places: Sequence[tuple[int, torch.Tensor]]) -> None:
        """Copies gradients to new places. Old ones may be in the same memory, so all are read before one is written."""
        memories = {memory.untyped_storage().data_ptr() for memory in self._memory.values()}
        values: list[torch.Tensor | None] = []
        for index, _ in places:
            gradient = self._parameters[index].grad
            if gradient is not None and gradient.untyped_storage().data_ptr() in memories:
                gradient = gradient.clone()
            values.append(gradient)
        for memory in self._memory.values():
            memory.zero_()
        for (index, view), value in zip(places, values, strict=True):
            self.views[index] = view
            if value is not None:
                view.copy_(value)
                self._parameters[index].grad = view
