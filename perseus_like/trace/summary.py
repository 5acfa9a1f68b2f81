"""The time of a job, divided into computing, waiting for the slowest rank, communicating and negotiating.

Tensors for which the ranks waited at the same times are one row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .files import Phase, RankTrace
from .units import shortened

Interval = tuple[float, float]
START_UP = "start-up"
_SET_UP = ("BROADCAST", "ALLGATHER", "BARRIER")  # verbs that are repeated before the first step, too
_COMPARED = 50  # the collectives of two tensors that are compared


@dataclass
class Collective:
    """One collective on all ranks. Times in seconds, by rank."""

    tensor: str
    verb: str
    bytes: int
    submitted: dict[int, float] = field(default_factory=dict)
    begin: dict[int, float] = field(default_factory=dict)
    end: dict[int, float] = field(default_factory=dict)

    def slowest(self) -> int:
        return max(self.submitted, key=lambda rank: self.submitted[rank])

    def waits(self) -> Interval:
        """Returns the times of the first and the last submission."""
        return min(self.submitted.values()), max(self.submitted.values())


@dataclass
class RankTime:
    """The seconds of one rank from the start of its process, or else from its first event, to its last event."""

    rank: int
    host: str
    total: float
    before_init: float | None  # None if the file does not tell
    waiting: float  # blocked while another rank had not submitted yet
    exposed: float  # blocked while data was sent
    negotiating: float  # blocked otherwise: negotiation messages, and the queue
    communicating: float  # data was sent, whether or not a thread waited for it

    @property
    def computing(self) -> float:
        """The rest of the time, in which no thread waited for a collective."""
        return self.total - (self.before_init or 0.0) - self.waiting - self.exposed - self.negotiating

    @property
    def overlap(self) -> float:
        """The part of the communication for which no thread waited, from 0 to 1."""
        return 1.0 - self.exposed / self.communicating if self.communicating > 0 else 0.0


@dataclass
class TensorTime:
    """All collectives of one tensor, or of tensors that waited together.

    Seconds are sums over collectives; `waited` is also summed over the ranks. Times at which several of the tensors
    waited, or were sent, count once.
    """

    tensors: list[str]  # the largest first; START_UP stands for those before the steps
    count: int  # of one tensor
    bytes: int  # of all tensors
    communicating: float  # measured on the first rank that has a file
    waited: float
    slowest: Counter[int]  # the number of times that each rank was the last to submit

    def label(self, width: int) -> str:
        """Returns the first tensor's name, and the number of the others, in at most `width` characters."""
        more = f" +{len(self.tensors) - 1}" if len(self.tensors) > 1 else ""
        return shortened(self.tensors[0], width - len(more)) + more


@dataclass
class Summary:
    ranks: list[RankTime]
    tensors: list[TensorTime]  # ordered by waiting time, the longest first
    caused: dict[int, float]  # for each rank: the seconds that other ranks were blocked because it was the last
    missing: int  # the number of ranks without a file


def summarize(traces: Sequence[RankTrace]) -> Summary:
    phases = {trace.rank: trace.phases() for trace in traces}
    collectives = _collectives(traces, phases)
    ranks = []
    caused = {trace.rank: 0.0 for trace in traces}
    for trace in traces:
        ranks.append(_rank_time(trace, phases[trace.rank], collectives, caused))
    tensors = sorted(_tensor_times(collectives), key=lambda tensor: -tensor.waited)
    return Summary(ranks, tensors, caused, traces[0].size - len(traces))


def _collectives(traces: Sequence[RankTrace], phases: dict[int, list[Phase]]) -> list[Collective]:
    found: dict[tuple[str, int], Collective] = {}
    for trace in traces:
        submitted: dict[str, float] = {}
        for phase in phases[trace.rank]:
            if phase.depth:
                continue
            if phase.name.startswith("NEGOTIATE_"):
                submitted[phase.track] = phase.begin
            elif "seq" in phase.arguments:
                key = (phase.track, phase.arguments["seq"])
                if key not in found:
                    found[key] = Collective(phase.track, phase.name, phase.arguments.get("bytes", 0))
                found[key].submitted[trace.rank] = submitted.pop(phase.track, phase.begin)
                found[key].begin[trace.rank] = phase.begin
                found[key].end[trace.rank] = phase.end
    if len(traces) == 1:
        _add_ticks(traces[0], found.values())
    return list(found.values())


def _add_ticks(trace: RankTrace, collectives: Iterable[Collective]) -> None:
    """Adds submission times of other ranks from rank 0's file: the times at which rank 0 learned of them."""
    ticks: dict[str, list[tuple[float, int]]] = {}
    for track, rank, at in trace.ticks():
        ticks.setdefault(track, []).append((at, rank))
    last: dict[str, float] = {}
    for collective in sorted(collectives, key=lambda each: each.begin[trace.rank]):
        begin = collective.begin[trace.rank]
        for at, rank in ticks.get(collective.tensor, ()):
            if rank != trace.rank and last.get(collective.tensor, 0.0) < at <= begin:
                collective.submitted[rank] = at
        last[collective.tensor] = begin


def _rank_time(
    trace: RankTrace, phases: Sequence[Phase], collectives: Iterable[Collective], caused: dict[int, float]
) -> RankTime:
    blocked = union((phase.begin, phase.end) for phase in phases if phase.name == "SYNCHRONIZE")
    rank = trace.rank
    mine = [collective for collective in collectives if rank in collective.begin]
    moving = union((collective.begin[rank], collective.end[rank]) for collective in mine)
    late: dict[int, list[Interval]] = {}
    for collective in mine:
        slowest = collective.slowest()
        if slowest != rank:
            late.setdefault(slowest, []).append((collective.submitted[rank], collective.submitted[slowest]))
    # Each interval counts once: as communication if data was sent, else as waiting.
    still = subtract(blocked, moving)
    waiting = overlap(still, union(interval for intervals in late.values() for interval in intervals))
    for slowest, intervals in late.items():
        caused[slowest] = caused.get(slowest, 0.0) + length(overlap(still, union(intervals)))
    exposed = length(overlap(blocked, moving))
    span = trace.span() or (0.0, 0.0)
    total = (span[1] - span[0]) / 1e6 + (trace.before_init or 0.0)
    negotiating = length(still) - length(waiting)
    return RankTime(rank, trace.host, total, trace.before_init, length(waiting), exposed, negotiating, length(moving))


def _tensor_times(collectives: Iterable[Collective]) -> list[TensorTime]:
    """Returns a row for the start-up, if there is one, and a row for each set of tensors that waited together."""
    by_tensor: dict[str, list[Collective]] = {}
    for collective in sorted(collectives, key=lambda each: each.waits()[0]):
        name = collective.tensor.partition(".noname.")[0] + (".noname.…" if ".noname." in collective.tensor else "")
        by_tensor.setdefault(name, []).append(collective)
    repeated = [some for some in by_tensor.values() if len(some) > 1 and some[0].verb not in _SET_UP]
    begin = min((some[0].waits()[0] for some in repeated), default=0.0)
    start_up = {name: some for name, some in by_tensor.items() if some[-1].waits()[0] < begin}
    times = [_tensor_time([START_UP], list(start_up.values()), count=1)] if start_up else []
    for row in _waited_together({name: some for name, some in by_tensor.items() if name not in start_up}):
        names = sorted(row, key=lambda name: -sum(collective.bytes for collective in row[name]))
        times.append(_tensor_time(names, list(row.values()), len(row[names[0]])))
    return times


def _waited_together(by_tensor: dict[str, list[Collective]]) -> list[dict[str, list[Collective]]]:
    """Divides tensors into sets whose members have as many collectives and mostly wait at the same times."""
    rows: list[dict[str, list[Collective]]] = []
    for name, some in by_tensor.items():
        for row in rows:
            first = next(iter(row.values()))
            if len(first) == len(some) and _share_waits(first, some):
                row[name] = some
                break
        else:
            rows.append({name: some})
    return rows


def _share_waits(some: Sequence[Collective], others: Sequence[Collective]) -> bool:
    compared = list(zip(some, others, strict=True))[:_COMPARED]
    shared = 0
    for one, other in compared:
        mine, its = one.waits(), other.waits()
        both = min(mine[1], its[1]) - max(mine[0], its[0])
        shared += 2 * both > min(mine[1] - mine[0], its[1] - its[0]) > 0
    return 2 * shared > len(compared)


def _tensor_time(names: list[str], tensors: Sequence[Sequence[Collective]], count: int) -> TensorTime:
    collectives = [collective for some in tensors for collective in some]
    first = min(min(collective.begin) for collective in collectives)
    waits: dict[int, list[Interval]] = {}
    for collective in collectives:
        for rank, at in collective.submitted.items():
            waits.setdefault(rank, []).append((at, collective.waits()[1]))
    sent = union((each.begin[first], each.end[first]) for each in collectives if first in each.begin)
    return TensorTime(
        names,
        count,
        sum(collective.bytes for collective in collectives),
        length(sent),
        sum(length(union(intervals)) for intervals in waits.values()),
        Counter(collective.slowest() for collective in collectives if len(collective.submitted) > 1),
    )


# Lists of intervals are sorted and have no overlaps.


def union(intervals: Iterable[Interval]) -> list[Interval]:
    joined: list[Interval] = []
    for begin, end in sorted(interval for interval in intervals if interval[1] > interval[0]):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def overlap(some: Sequence[Interval], others: Sequence[Interval]) -> list[Interval]:
    common: list[Interval] = []
    i = j = 0
    while i < len(some) and j < len(others):
        begin, end = max(some[i][0], others[j][0]), min(some[i][1], others[j][1])
        if begin < end:
            common.append((begin, end))
        if some[i][1] < others[j][1]:
            i += 1
        else:
            j += 1
    return common


def subtract(some: Sequence[Interval], others: Sequence[Interval]) -> list[Interval]:
    rest: list[Interval] = []
    for begin, end in some:
        at = begin
        for other_begin, other_end in overlap([(begin, end)], others):
            if other_begin > at:
                rest.append((at, other_begin))
            at = other_end
        if at < end:
            rest.append((at, end))
    return rest


def length(intervals: Iterable[Interval]) -> float:
    return sum(end - begin for begin, end in intervals)
