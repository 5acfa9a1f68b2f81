"""Gradients and optimizer states of a sharded optimizer, in memory of the host, and this rank's shard of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from perseus_like.host_memory import map_together
from perseus_like.process_sets import ProcessSet

from ..parameter_memory import ALIGNED_ELEMENTS, Named

_PAGE_ELEMENTS = 1024  # shards begin at multiples of it, so that ranks seldom write to the same page
_PIECE = 1 << 16  # elements whose gradients of all ranks fit into a cache
_STAYING_BYTES = 1 << 17  # smaller gradients are copied, so that neighbours are updated together
STATE_BYTES = 4  # states are float32


@dataclass(frozen=True)
class Slot:
    """A parameter's place: its first element among all elements, and its first byte in a rank's row of gradients."""

    parameter: torch.Tensor
    group: int
    element: int
    byte: int
    is_own: bool = False  # no other rank needs this rank's gradient, which stays in `parameter.grad`


@dataclass(frozen=True)
class Segment:
    """Consecutive elements of this rank's shard, which are updated together."""

    slot: Slot  # of the first parameter
    start: int  # the first element within the slot
    count: int

    @property
    def parameter_address(self) -> int:
        return self.slot.parameter.data_ptr() + self.start * self.slot.parameter.element_size()

    @property
    def gradient_byte(self) -> int:
        return self.slot.byte + self.start * self.slot.parameter.element_size()

    @property
    def state_byte(self) -> int:
        return (self.slot.element + self.start) * STATE_BYTES


class ShardMemory:
    """One row of gradients for each rank, then one array for each kind of state. All ranks have the same layout.

    A rank's row has its gradients of other ranks' shards, and the small ones of its own.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[Named]],
        kinds: Sequence[str],
        process_set: ProcessSet,
        options: Sequence[str],
        is_reduced: bool,
    ) -> None:
        """`kinds` are the names of states. `options` describes the optimizer. Collective over the set.

        `is_reduced`: each rank has the reduced gradients, and reads those of no other rank.
        """
        self.size, self.index = process_set.size() or 1, process_set.rank() or 0
        self._is_reduced = is_reduced
        self.present = tuple(range(self.size))  # the ranks that divide the elements: those that have not joined
        self.staying: dict[int, torch.Tensor] = {}  # this step's gradients outside of the row, by id() of the parameter
        self.slots: list[Slot] = []
        self._elements = row_bytes = 0
        contents = list(options)
        for number, group in enumerate(groups):
            for name, parameter in group:
                alignment = ALIGNED_ELEMENTS * parameter.element_size()
                row_bytes = _aligned(row_bytes, alignment)
                self.slots.append(Slot(parameter, number, self._elements, row_bytes))
                row_bytes += parameter.numel() * parameter.element_size()
                self._elements = _aligned(self._elements + parameter.numel(), ALIGNED_ELEMENTS)
                contents.append(f"{name!r} {parameter.dtype}{list(parameter.shape)} in group {number}")
        self.slots = [replace(slot, is_own=self._is_own(slot)) for slot in self.slots]
        self.row_bytes = _aligned(row_bytes, 4096)
        state_bytes = _aligned(self._elements * STATE_BYTES, 4096)
        states_at = self.size * self.row_bytes
        self._states_at = {kind: states_at + place * state_bytes for place, kind in enumerate(kinds)}
        self._mapping = map_together(
            states_at + len(kinds) * state_bytes, contents, "ZeroRedundancyOptimizer", process_set
        )
        self._address = torch.frombuffer(self._mapping, dtype=torch.uint8, count=1).data_ptr()
        self.gradients = [
            self._view(slot, self._row(self.index) + slot.byte, slot.parameter.dtype) for slot in self.slots
        ]

    def state(self, slot: Slot, kind: str) -> torch.Tensor:
        """Returns the state of a whole parameter, with the parameter's shape and strides."""
        return self._view(slot, self._states_at[kind] + slot.element * STATE_BYTES, torch.float32)

    def state_address(self, segment: Segment, kind: str) -> int:
        return self._address + self._states_at[kind] + segment.state_byte

    def stays(self, slot: Slot) -> bool:
        """Returns whether this rank's gradient stays where autograd has put it."""
        return slot.is_own and (self._is_reduced or len(self.present) == self.size)

    def gradient_addresses(self, segment: Segment, of_all: bool) -> list[int]:
        """Returns where the gradients of all ranks begin, or the sum of them, which `sum_gradients` has written."""
        ranks = self.present if of_all else [self.index]
        addresses = [self._address + self._row(rank) + segment.gradient_byte for rank in ranks]
        gradient = self._staying_gradient(segment)
        if gradient is not None:
            addresses[ranks.index(self.index)] = gradient.data_ptr() + segment.start * gradient.element_size()
        return addresses

    def segments(self, kind_of: Sequence[object]) -> list[Segment]:
        """Returns this rank's shard. Neighbours of one kind, whose memory has the same distances, are merged."""
        place = self.present.index(self.index)
        start, end = self._bound(place), self._bound(place + 1)
        found: list[tuple[Segment, object]] = []
        for slot, kind in zip(self.slots, kind_of, strict=True):
            first, last = max(start - slot.element, 0), min(end - slot.element, slot.parameter.numel())
            if first >= last:
                continue
            new = Segment(slot, first, last - first)
            before = found[-1] if found else None
            is_near = before is not None and not self.stays(slot) and not self.stays(before[0].slot)
            if before is not None and is_near and before[1] == kind and _continues(before[0], new):
                whole = new.slot.element + new.start + new.count - before[0].slot.element - before[0].start
                found[-1] = (Segment(before[0].slot, before[0].start, whole), kind)
            else:
                found.append((new, kind))
        return [segment for segment, _ in found]

    def piece(self, segment: Segment, kind: str | None) -> torch.Tensor:
        """Returns the segment's elements of a state in one dimension, or those of the parameter itself."""
        if segment.count == 0:
            return torch.empty(0, dtype=segment.slot.parameter.dtype if kind is None else torch.float32)
        if kind is None:
            return _elements(segment.slot.parameter.detach(), segment.start, segment.count)
        offset = self._states_at[kind] + segment.state_byte
        return torch.frombuffer(self._mapping, dtype=torch.float32, count=segment.count, offset=offset)

    def sum_gradients(self, segments: Sequence[Segment], ranks: Sequence[int]) -> float:
        """Replaces this rank's gradients by the sums over the ranks. Returns the sum of the sums' squares."""
        squares = 0.0
        for segment in segments:
            for rows in self._pieces(segment):
                total = _sum_of([rows[rank] for rank in ranks])
                rows[self.index].copy_(total)
                squares += float(torch.linalg.vector_norm(total)) ** 2
        return squares

    def summed(self, segment: Segment, is_summed: bool) -> torch.Tensor:
        """Returns the segment's sum over all ranks in float32. `is_summed`: `sum_gradients` has written it."""
        ranks = [self.index] if is_summed else self.present
        parts = [_sum_of([rows[rank] for rank in ranks]) for rows in self._pieces(segment)]
        return torch.cat(parts) if parts else torch.empty(0)

    def _pieces(self, segment: Segment) -> Iterator[list[torch.Tensor]]:
        for first in range(0, segment.count, _PIECE):
            count = min(_PIECE, segment.count - first)
            yield [self._gradient(segment, rank, first, count) for rank in range(self.size)]

    def _gradient(self, segment: Segment, rank: int, first: int, count: int) -> torch.Tensor:
        """Returns a rank's gradients of some elements of the segment, in one dimension."""
        gradient = self._staying_gradient(segment) if rank == self.index else None
        if gradient is not None:
            return _elements(gradient, segment.start + first, count)
        dtype = segment.slot.parameter.dtype
        offset = self._row(rank) + segment.gradient_byte + first * dtype.itemsize
        return torch.frombuffer(self._mapping, dtype=dtype, count=count, offset=offset)

    def _staying_gradient(self, segment: Segment) -> torch.Tensor | None:
        """Returns this rank's gradient of the segment's parameter if it is not in its row."""
        return self.staying.get(id(segment.slot.parameter))

    def _is_own(self, slot: Slot) -> bool:
        nbytes, end = slot.parameter.numel() * slot.parameter.element_size(), slot.element + slot.parameter.numel()
        is_mine = self._bound(self.index) <= slot.element and end <= self._bound(self.index + 1)
        return nbytes >= _STAYING_BYTES and (is_mine or self._is_reduced)

    def _row(self, rank: int) -> int:
        return rank * self.row_bytes

    def _bound(self, place: int) -> int:
        count = len(self.present)
        return self._elements if place == count else _aligned(place * self._elements // count, _PAGE_ELEMENTS)

    def _view(self, slot: Slot, offset: int, dtype: torch.dtype) -> torch.Tensor:
        parameter = slot.parameter
        if parameter.numel() == 0:
            return torch.empty(parameter.shape, dtype=dtype)
        flat = torch.frombuffer(self._mapping, dtype=dtype, count=math.prod(parameter.shape), offset=offset)
        return flat.as_strided(parameter.shape, parameter.stride())


def _elements(tensor: torch.Tensor, first: int, count: int) -> torch.Tensor:
    """Returns elements of a tensor without gaps, in the order of memory."""
    place = tensor.storage_offset() + first
    return torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage(), place, (count,), (1,))


def _sum_of(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    total = rows[0].float()
    for row in rows[1:]:
        total = total + row
    return total


def _continues(before: Segment, after: Segment) -> bool:
    """Returns whether one range contains both segments, with only padding between them."""
    distance = after.slot.element + after.start - before.slot.element - before.start
    nbytes = distance * before.slot.parameter.element_size()
    return (
        before.slot.parameter.dtype == after.slot.parameter.dtype
        and after.gradient_byte - before.gradient_byte == nbytes
        and after.parameter_address - before.parameter_address == nbytes
        and distance - before.count < ALIGNED_ELEMENTS
    )


def _aligned(number: int, alignment: int) -> int:
    return -(-number // alignment) * alignment
