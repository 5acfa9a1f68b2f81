"""Where the time of a job went: computing, waiting for the slowest rank, communicating."""

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
    asked: dict[int, float] = field(default_factory=dict)
    begin: dict[int, float] = field(default_factory=dict)
    end: dict[int, float] = field(default_factory=dict)

    def slowest(self) -> int:
        return max(self.asked, key=lambda rank: self.asked[rank])


@dataclass
class RankTime:
    """The seconds of one rank from its first event to its last."""

    rank: int
    host: str
    total: float
    waiting: float  # blocked, while another rank had not asked yet
    exposed: float  # blocked, while data moved
    agreeing: float  # blocked, otherwise: the way of messages, and the queue
    communicating: float  # data moved, whether somebody waited or not

    @property
    def computing(self) -> float:
        """Everything else: nothing of ours was waited for."""
        return self.total - self.waiting - self.exposed - self.agreeing

    @property
    def overlap(self) -> float:
        """The part of the communication that nobody waited for, from 0 to 1."""
        return 1.0 - self.exposed / self.communicating if self.communicating > 0 else 0.0


@dataclass
class TensorTime:
    """All collectives of one tensor. Seconds are summed over collectives; `waited` over the ranks that waited, too."""

    tensor: str
    count: int = 0
    bytes: int = 0
    communicating: float = 0.0  # on the first rank that is there
    waited: float = 0.0
    slowest: Counter[int] = field(default_factory=Counter)  # how often each rank was the last to ask


@dataclass
class Summary:
    ranks: list[RankTime]
    tensors: list[TensorTime]  # those most waited for first
    caused: dict[int, float]  # seconds that other ranks were blocked because this one was last
    missing: int  # ranks of the job whose files are not there


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
        asked: dict[str, float] = {}
        for phase in phases[trace.rank]:
            if phase.depth:
                continue
            if phase.name.startswith("NEGOTIATE_"):
                asked[phase.track] = phase.begin
            elif "seq" in phase.arguments:
                key = (phase.track, phase.arguments["seq"])
                if key not in found:
                    found[key] = Collective(phase.track, phase.name, phase.arguments.get("bytes", 0))
                found[key].asked[trace.rank] = asked.pop(phase.track, phase.begin)
                found[key].begin[trace.rank] = phase.begin
                found[key].end[trace.rank] = phase.end
    if len(traces) == 1:
        _add_ticks(traces[0], found.values())
    return list(found.values())


def _add_ticks(trace: RankTrace, collectives: Iterable[Collective]) -> None:
    """With rank 0's file alone: when it heard of the others."""
    ticks: dict[str, list[tuple[float, int]]] = {}
    for track, rank, at in trace.ticks():
        ticks.setdefault(track, []).append((at, rank))
    last: dict[str, float] = {}
    for collective in sorted(collectives, key=lambda each: each.begin[trace.rank]):
        begin = collective.begin[trace.rank]
        for at, rank in ticks.get(collective.tensor, ()):
            if rank != trace.rank and last.get(collective.tensor, 0.0) < at <= begin:
                collective.asked[rank] = at
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
            late.setdefault(slowest, []).append((collective.asked[rank], collective.asked[slowest]))
    # A moment counts once: as communication if data moved, else as waiting.
    still = subtract(blocked, moving)
    waiting = overlap(still, union(interval for intervals in late.values() for interval in intervals))
    for slowest, intervals in late.items():
        caused[slowest] = caused.get(slowest, 0.0) + length(overlap(still, union(intervals)))
    exposed = length(overlap(blocked, moving))
    times = [time for phase in phases for time in (phase.begin, phase.end)]
    total = max(times) - min(times) if times else 0.0
    agreeing = length(still) - length(waiting)
    return RankTime(rank, trace.host, total, length(waiting), exposed, agreeing, length(moving))


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
        time.waited += sum(collective.asked[slowest] - at for at in collective.asked.values())
        if len(collective.asked) > 1:
            time.slowest[slowest] += 1
    return list(times.values())


# Intervals: ascending and apart.


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
