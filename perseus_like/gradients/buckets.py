"""Buckets of gradients, without tensors: which gradients share a bucket, which are ready, and when a bucket is sent.

A bucket is contiguous memory of several gradients, which one request reduces.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

# A bucket is sent when it is full. A small first bucket starts early; large buckets cost less per byte.
FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20
ALIGNMENT_BYTES = 64
# A gradient of this size in host memory is a request of its own: with others, it would be sent later. It does not stay
# in a cache until it is reduced.
LARGE_BYTES = 2 << 20


@dataclass(frozen=True)
class Member(Generic[K]):
    """A gradient of a bucket layout. Only gradients of one `kind` (dtype and device) can share a bucket."""

    elements: int
    element_bytes: int
    kind: K
    # It shares a bucket although it is large: on a device, a collective costs more than the wait for a full bucket.
    fills_bucket: bool = False

    @property
    def padded_elements(self) -> int:
        step = max(1, ALIGNMENT_BYTES // self.element_bytes)
        return -(-self.elements // step) * step


@dataclass
class Bucket(Generic[K]):
    """Gradients that one request reduces. They are consecutive in the memory of their kind."""

    kind: K
    start: int = 0  # element
    elements: int = 0
    members: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)  # element in the memory of the kind, per member


@dataclass(frozen=True)
class Layout(Generic[K]):
    """Buckets in the order in which they are sent, and the elements of memory that each kind needs."""

    buckets: list[Bucket[K]]
    totals: dict[K, int]


def lay_out(
    members: dict[int, Member[K]],
    order: Sequence[int],
    groups: Sequence[Sequence[int]] | None = None,
    first_bytes: int = FIRST_BUCKET_BYTES,
    bucket_bytes: int = BUCKET_BYTES,
    large_bytes: int | None = None,
) -> Layout[K]:
    """Returns a bucket layout of `members` in the given order of arrival. The size of buckets is limited.

    Each of the user's `groups` is a bucket of its own (one per kind) of any size. A gradient of at least
    `large_bytes` that is in no group is a bucket of its own, too, unless it has `fills_bucket`.
    """
    group_of = {index: number for number, group in enumerate(groups or ()) for index in group}
    buckets: list[Bucket[K]] = []
    open_buckets: dict[tuple[K, int | None], Bucket[K]] = {}
    sizes: dict[int, int] = {}
    for index in order:
        member = members[index]
        key = (member.kind, group_of.get(index))
        bytes_ = member.padded_elements * member.element_bytes
        is_large = large_bytes is not None and bytes_ >= large_bytes and not member.fills_bucket
        if is_large and key[1] is None:
            buckets.append(Bucket(member.kind, members=[index]))
            continue
        bucket = open_buckets.get(key)
        limit = first_bytes if bucket is not None and bucket is buckets[0] else bucket_bytes
        if bucket is None or (key[1] is None and bucket.members and sizes[id(bucket)] + bytes_ > limit):
            bucket = open_buckets[key] = Bucket(member.kind)
            buckets.append(bucket)
            sizes[id(bucket)] = 0
        bucket.members.append(index)
        sizes[id(bucket)] += bytes_
    # A bucket is full when its last gradient arrives, so buckets are sent in the order of their last gradients.
    position = {index: arrival for arrival, index in enumerate(order)}
    buckets.sort(key=lambda bucket: position[bucket.members[-1]])
    return Layout(buckets, _assign_offsets(buckets, members))


def _assign_offsets(buckets: Sequence[Bucket[K]], members: dict[int, Member[K]]) -> dict[K, int]:
    totals: dict[K, int] = {}
    for bucket in buckets:
        bucket.start = totals.get(bucket.kind, 0)
        end = bucket.start
        for index in bucket.members:
            bucket.offsets.append(end)
            end += members[index].padded_elements
        bucket.elements = end - bucket.start
        totals[bucket.kind] = end
    return totals


class PassCounter:
    """Counts backward passes of each gradient, and sends a bucket once it is full and all earlier buckets are sent."""

    def __init__(
        self,
        count: int,
        passes_per_step: int,
        send: Callable[[int], None],
        too_many: str = "a gradient was computed in more backward passes than passes_per_step",
        counting: bool = False,
        full: Callable[[int], None] = lambda number: None,
    ) -> None:
        """Starts without a layout. `too_many` is the text of the error if a gradient arrives too often.

        `full(number)` is called when all gradients of a bucket have arrived, `send(number)` when it is its turn.

        If `counting` is true, the number of passes of each gradient is learned together with the order.
        """
        self.passes_per_step = passes_per_step
        self._too_many = too_many
        self._counting = counting
        self._extra: dict[int, int] = {}  # additional passes of gradients that arrive more often than the others
        self.ready = 0  # gradients whose passes are all done, and which are not reduced yet
        self.synchronized = False  # all are reduced, and no gradient has arrived since
        self.arrivals: list[int] = []  # kept until there is a layout
        self._send, self._full = send, full
        self._left = [passes_per_step] * count
        self._bucket_of: list[int | None] = [None] * count
        self._sizes: list[int] = []
        self._missing: list[int] = []
        self._next = 0
        self._learning = True
        self.holds = False  # nothing is sent before `send_rest`

    def learn(self) -> None:
        """Drops the layout. Gradients are counted, and the order in which they arrive is recorded."""
        self._learning = True
        self._extra.clear()
        self._bucket_of = [None] * len(self._left)
        self._sizes = self._missing = []
        self._next = 0

    def use(self, layout: Layout[Any]) -> None:
        """Makes gradients fill the buckets of `layout`."""
        self.arrivals.clear()
        self._learning = False
        self._bucket_of = [None] * len(self._left)
        for number, bucket in enumerate(layout.buckets):
            for index in bucket.members:
                self._bucket_of[index] = number
        self._sizes = [len(bucket.members) for bucket in layout.buckets]
        self.reset()

    def grow(self, count: int) -> None:
        """Adds gradients to count."""
        self._left.extend([self.passes_per_step] * count)
        self._bucket_of.extend([None] * count)

    def arrived(self, index: int) -> None:
        """Counts a backward pass of this gradient. It runs for each gradient of each pass, so it has to be fast."""
        self.synchronized = False
        left = self._left[index] - 1
        if left > 0:
            self._left[index] = left
            return
        if left < 0:
            if not (self._counting and self._learning):
                raise AssertionError(self._too_many)
            self._extra[index] = self._extra.get(index, 0) + 1
            return
        self._left[index] = 0
        self.ready += 1
        if self._learning:
            self.arrivals.append(index)
            return
        bucket = self._bucket_of[index]
        if bucket is not None:
            self._missing[bucket] -= 1
            if self._missing[bucket]:
                return
            self._full(bucket)
            # The last bucket is full when the backward pass ends, so nothing overlaps with it. The thread that waits
            # for it sends it, which saves a thread switch.
            if bucket == self._next and not self.holds:
                self._send_full(len(self._missing) - 1)

    def incomplete(self, index: int) -> bool:
        """Returns True if backward passes are missing for this gradient."""
        return self._left[index] > 0

    def send_rest(self) -> None:
        """Sends the remaining buckets, full or not. If nothing was sent before, it starts with the last bucket."""
        self._missing = [0] * len(self._sizes)
        if not self.holds:
            self._send_full(len(self._missing))
            return
        for number in reversed(range(self._next, len(self._missing))):
            self._send(number)
        self._next = len(self._missing)

    def reset(self) -> None:
        """Starts a new step."""
        self._left = [self.passes_per_step] * len(self._left)
        for index, more in self._extra.items():
            self._left[index] += more
        self._missing = list(self._sizes)
        self._next = 0
        self.ready = 0
        if self._learning:
            self.arrivals.clear()

    def _send_full(self, end: int) -> None:
        while self._next < end and not self._missing[self._next]:
            number = self._next
            self._next += 1
            self._send(number)
