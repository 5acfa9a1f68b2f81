"""The time of a job, divided into computing, waiting for the slowest rank, communicating and negotiating."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .files import Phase, RankTrace

Interval = tuple[float, float]


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


@dataclass
class RankTime:
    """The seconds of one rank from its first event to its last."""

    rank: int
    host: str
    total: float
    waiting: float  # blocked while another rank had not submitted yet
    exposed: float  # blocked while data was sent
    negotiating: float  # blocked otherwise: negotiation messages, and the queue
    communicating: float  # data was sent, whether or not a thread waited for it

    @property
    def computing(self) -> float:
        """The rest of the time, in which no thread waited for a collective."""
        return self.total - self.waiting - self.exposed - self.negotiating

    @property
    def overlap(self) -> float:
        """The part of the communication for which no thread waited, from 0 to 1."""
        return 1.0 - self.exposed / self.communicating if self.communicating > 0 else 0.0


@dataclass
class TensorTime:
    """All collectives of one tensor. Seconds are sums over collectives; `waited` is also summed over the ranks."""

    tensor: str
    count: int = 0
    bytes: int = 0
    communicating: float = 0.0  # measured on the first rank that has a file
    waited: float = 0.0
    slowest: Counter[int] = field(default_factory=Counter)  # the number of times that each rank was the last to submit


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
    times = [time for phase in phases for time in (phase.begin, phase.end)]
    total = max(times) - min(times) if times else 0.0
    negotiating = length(still) - length(waiting)
    return RankTime(rank, trace.host, total, length(waiting), exposed, negotiating, length(moving))


def _tensor_times(collectives: Iterable[Collective]) -> list[TensorTime]:
    times: dict[str, TensorTime] = {}
    for collective in collectives:
        name = collective.tensor.partition(".noname.")[0] + (".noname.…" if ".noname." in collective.tensor else "")
        time = times.setdefault(name, TensorTime(name))
        first = min(collective.begin)
        slowest = collective.slowest()
        time.count += 1
        time.bytes += collective.bytes
        time.communicating += collective.end[first] - collective.begin[first]
        time.waited += sum(collective.submitted[slowest] - at for at in collective.submitted.values())
        if len(collective.submitted) > 1:
            time.slowest[slowest] += 1
    return list(times.values())


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
