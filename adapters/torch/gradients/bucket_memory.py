"""The memory of one owner's gradients, which share buckets, and what the program does to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import eq, is_
from typing import NamedTuple

import torch

from perseus_like.gradients.buckets import LARGE_BYTES, Layout
from perseus_like.process_sets import ProcessSet
from perseus_like.session import session

from ..compat.core import copy_all
from ..compat.dynamo import is_compiling
from ..tensors.shared_memory import warn_once
from .gradient_memory import Kind, allocate, dense_strides, fill, register

_version_of = torch.Tensor._version.__get__  # type: ignore[attr-defined]


class Changes(NamedTuple):
    """The gradients, by index, that the program has written to or replaced, and those that it has set to None."""

    written: set[int]
    removed: set[int]
    intact: set[int]  # these are as they were noted


class GradientWatch:
    """The gradients of one owner. Reads are not noticed, nor writes through `.data`, which torch does not count."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        """Takes the owner's list of parameters, which may grow."""
        self._parameters = parameters
        self.noted: dict[int, torch.Tensor] = {}  # by index, as they were noted
        self._versions: dict[int, int] = {}  # of each of them

    def note(self, indices: Iterable[int]) -> None:
        """Notes gradients that have been computed, or were moved to their bucket."""
        for index in indices:
            gradient = self._parameters[index].grad
            if gradient is not None:
                self.noted[index] = gradient
                self._versions[index] = gradient._version

    def note_again(self) -> None:
        """Notes the gradients that were noted as they are now."""
        self.note([*self.noted])

    def clear_notes(self) -> None:
        self.noted.clear()
        self._versions.clear()

    def changes(
        self,
        are_in_place: Callable[[Iterable[int]], bool] = lambda indices: True,
        indices: Iterable[int] | None = None,
    ) -> Changes:
        """Compares gradients with what was noted.

        `are_in_place`: returns whether such gradients have their memory. `indices`: the gradients to compare, or None
        for all.
        """
        gradients, versions, parameters = self.noted, self._versions, self._parameters
        if indices is not None:
            gradients = {index: gradients[index] for index in indices if index in gradients}
            versions = {index: versions[index] for index in gradients}
        now = [parameters[index].grad for index in gradients]
        # A program that changes nothing pays for this comparison alone.
        if (
            all(map(is_, now, gradients.values()))
            and all(map(eq, map(_version_of, now), versions.values()))
            and are_in_place(gradients)
        ):
            return Changes(set(), set(), set(gradients))
        written, removed, intact = set(), set(), set()
        for index, gradient in zip(gradients, now, strict=True):
            if gradient is None:
                removed.add(index)
            elif gradient is gradients[index] and gradient._version == versions[index] and are_in_place((index,)):
                intact.add(index)
            else:
                written.add(index)
        return Changes(written, removed, intact)


@dataclass(frozen=True)
class Contents:
    """The contents of a bucket, which a communication hook gets."""

    number: int
    row: torch.Tensor  # the whole bucket; gaps between gradients are 0
    gradients: list[torch.Tensor]  # views of the row
    parameters: list[torch.Tensor]
    is_last: bool


class BucketMemory(GradientWatch):
    """Maps gradients, by their index in the owner's parameters, and buckets, by their number, to memory."""

    def __init__(
        self, parameters: list[torch.Tensor], names: list[str], process_set: ProcessSet, sparse_as_dense: bool
    ) -> None:
        """Takes the owner's lists of parameters and of their names, which may grow."""
        super().__init__(parameters)
        self._names = names
        self._sparse_as_dense = sparse_as_dense
        self._generation = session.generation  # of the memory
        self.sparse_seen: dict[int, int] = {}  # the sparse dimensions of each sparse gradient
        # `p.grad` is set to these; None for a gradient that is in no bucket. Each has a version counter of its own, and
        # a program can make it a tensor of other memory (`p.grad.data = …`, `model.double()`): the places stay.
        self.views: list[torch.Tensor | None] = []
        self._places: list[torch.Tensor | None] = []
        self.unfit: set[int] = set()  # gradients of this step whose parameters have another dtype or device by now
        self._process_set = process_set
        self._registered: list[object] = []  # released before the memory
        self._memory: dict[Kind, torch.Tensor] = {}
        self.rows: list[torch.Tensor] = []  # per bucket: all of its memory
        self.members: list[list[int]] = []  # per bucket: its gradients
        # Gradients on a device that were taken and not copied yet, by index: one kernel copies many of them.
        self.taken: dict[int, torch.Tensor] = {}

    def forget(self) -> None:
        """Removes all gradients from their buckets."""
        self.taken.clear()
        self.unfit.clear()
        self.views[:] = [None] * len(self._parameters)
        self._places[:] = self.views

    def drop_memory(self) -> None:
        """Makes `use` allocate all memory anew. Gradients keep theirs until then."""
        self._generation = session.generation
        self.rows.clear()
        self._registered.clear()
        self._memory.clear()

    def release(self) -> None:
        self.views.clear()
        self._places.clear()
        self.drop_memory()

    def are_in_place(self, indices: Iterable[int]) -> bool:
        """Returns whether the views of these gradients are views of their buckets, and not of other memory."""
        for index in indices:
            view, place = self.views[index], self._places[index]
            if view is not None and place is not None and not view.is_set_to(place):
                return False
        return True

    def renewed_view(self, index: int) -> torch.Tensor | None:
        """Returns the gradient's view of its bucket, or None. It is a new one if the program has moved the old one."""
        place = self._places[index]
        if place is not None and not self.are_in_place((index,)):
            self.views[index] = place.data
        return self.views[index]

    def assign(self, index: int, view: torch.Tensor) -> None:
        """Sets the parameter's gradient to its view, or marks it as unfit if the parameter has another dtype by now."""
        try:
            self._parameters[index].grad = view
        except RuntimeError:
            self.unfit.add(index)

    def convert(self) -> None:
        """Sets unfit gradients to copies of what is in their buckets."""
        for index in self.unfit:
            self.show(index)
        self.unfit.clear()

    def adopt(self, index: int, gradient: torch.Tensor | None) -> None:
        """Copies a gradient that is not in its bucket there, wherever autograd or the program has allocated it.

        On a device, `gather` copies it. A gradient with a graph stays the parameter's, since the program may need it
        (`backward(create_graph=True)`).
        """
        if gradient is None:
            return
        view, parameter = self.views[index], self._parameters[index]
        if gradient.layout is not torch.strided:
            if self._sparse_as_dense:
                parameter.grad = gradient = gradient.to_dense()
            elif view is None:
                self.sparse_seen[index] = gradient.sparse_dim()
                return
            else:
                warn_once(
                    f"the gradient of {self._names[index]!r} became sparse after the first step; it is kept dense"
                )
                gradient = gradient.to_dense()
        if view is None or self._generation != session.generation:
            return
        if view.get_device() >= 0 and not is_compiling():
            self.taken[index] = gradient
            return
        has_graph = gradient.requires_grad
        source = gradient.detach() if has_graph else gradient
        if view.nbytes < LARGE_BYTES:  # as `fill` does, which most gradients need not call
            view.copy_(source)
        else:
            fill(view, source)
        if not has_graph:
            try:
                parameter.grad = view
            except RuntimeError:
                self.unfit.add(index)

    def note_bucket(self, number: int) -> None:
        """Notes the gradients of a full bucket. They are in their places then, wherever the program has moved them."""
        if is_compiling():  # the bucket is noted when it is sent
            return
        members = self.members[number]
        if self.taken:
            self.gather(members)
        if not self.are_in_place(members):
            for index in members:
                if not self.are_in_place((index,)):
                    self.renewed_view(index)
                    self.adopt(index, self._parameters[index].grad)
        self.note(members)

    def gather(self, indices: Iterable[int] | None = None) -> None:
        """Copies those of these gradients that were taken, or all that were taken, to their buckets."""
        places, gradients = [], []
        for index in [*self.taken] if indices is None else [each for each in indices if each in self.taken]:
            gradient, view = self.taken.pop(index), self.renewed_view(index)
            if view is None:
                continue
            places.append(view)
            gradients.append(gradient.detach() if gradient.requires_grad else gradient)
            if self._parameters[index].grad is gradient and not gradient.requires_grad:
                self.assign(index, view)
        if places:
            copy_all(places, gradients)

    def abandon(self) -> None:
        """Forgets the gradients that were taken."""
        self.taken.clear()
        self.unfit.clear()

    def contents(self, number: int) -> Contents:
        members = self.members[number]
        parameters = [self._parameters[index] for index in members]
        gradients = [view for index in members if (view := self.views[index]) is not None]
        return Contents(number, self.rows[number], gradients, parameters, number + 1 == len(self.rows))

    def show(self, index: int) -> None:
        """Sets the parameter's gradient to the one in its bucket, which other ranks have computed."""
        view, parameter = self.renewed_view(index), self._parameters[index]
        if view is not None:
            parameter.grad = view.to(parameter.device, parameter.dtype)

    def scale(self, factor: float) -> None:
        """Multiplies all gradients by a factor."""
        for row in self.rows:
            row.mul_(factor)

    def use(self, layout: Layout[Kind]) -> None:
        """Allocates the buckets of `layout`, and moves gradients into them."""
        self._registered.clear()
        for kind, elements in layout.totals.items():
            old = self._memory.get(kind)
            if old is None or old.numel() < elements:
                self._memory[kind] = allocate(elements, kind)
        self._registered = [register(memory, self._process_set) for memory in self._memory.values()]
        self.rows = []
        self.members = [bucket.members for bucket in layout.buckets]
        moved: list[tuple[int, torch.Tensor]] = []
        for bucket in layout.buckets:
            memory = self._memory[bucket.kind]
            self.rows.append(memory.narrow(0, bucket.start, bucket.elements))
            for index, offset in zip(bucket.members, bucket.offsets, strict=True):
                shape, strides = self._parameters[index].shape, dense_strides(self._parameters[index])
                moved.append((index, memory.as_strided(shape, strides, memory.storage_offset() + offset)))
        self._move(moved)

    def _move(self, places: Sequence[tuple[int, torch.Tensor]]) -> None:
        """Copies gradients to new places. The old places may overlap with them, so all gradients are read first."""
        memories = {memory.untyped_storage().data_ptr() for memory in self._memory.values()}
        values: list[torch.Tensor | None] = []
        for index, _ in places:
            gradient = self._parameters[index].grad
            if gradient is not None and gradient.untyped_storage().data_ptr() in memories:
                gradient = gradient.clone()
            values.append(gradient)
        for memory in self._memory.values():
            memory.zero_()
        for (index, place), value in zip(places, values, strict=True):
            self._places[index] = place
            view = self.views[index] = place.data
            if value is not None:
                view.copy_(value)
                self._parameters[index].grad = view
