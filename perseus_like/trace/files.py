"""The timeline files of a job's ranks: finding them, reading them and converting them to one clock."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]
_GIVE = "give a file that --timeline-filename or HOROVOD_TIMELINE has named"
ABOUT, EPOCH, INIT = "perseus_like", "start_time_since_epoch_in_micros", "INIT"
# The types of the parts of an event that are read here.
_PARTS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("name", "ph"), (str,)),
    **dict.fromkeys(("pid", "tid"), (int,)),
    "ts": (int, float),
    "args": (dict,),
}
_ARGUMENTS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("name", "tensor", "host"), (str,)),
    **dict.fromkeys(("rank", "size", "seq", "bytes"), (int,)),
    EPOCH: (int, float),
}


class TraceError(Exception):
    """The file is no timeline of perseus_like, or the files do not belong to one job."""


@dataclass
class Phase:
    """A phase of a track from `begin` to `end`, in seconds."""

    name: str
    track: str
    begin: float
    end: float
    arguments: dict[str, Any]
    depth: int


@dataclass
class RankTrace:
    """The timeline of one rank. Times of events are microseconds after `start`, which is in microseconds since 1970.

    `before_init`: the seconds from the start of the process to init(); None if the file does not tell.
    """

    path: Path
    rank: int
    size: int
    host: str
    start: float
    events: list[Event]
    tracks: dict[int, str] = field(default_factory=dict)
    before_init: float | None = None

    def phases(self) -> list[Phase]:
        """Returns the phases in the order of their ends. A phase without an end lasts until the last event."""
        shift = self.start
        done: list[Phase] = []
        open_phases: dict[int, list[Phase]] = {}
        last = 0.0
        for event in self.timed():
            at = (shift + event["ts"]) / 1e6
            last = at
            stack = open_phases.setdefault(event["tid"], [])
            if event["ph"] == "B":
                arguments = event.get("args", {})
                track = arguments.get("tensor") or (stack[0].track if stack else self.tracks.get(event["tid"], ""))
                stack.append(Phase(event["name"], track, at, at, arguments, len(stack)))
            elif event["ph"] == "E" and stack:
                phase = stack.pop()
                phase.end = at
                done.append(phase)
        for stack in open_phases.values():
            for phase in reversed(stack):
                phase.end = last
                done.append(phase)
        return done

    def ticks(self) -> Iterator[tuple[str, int, float]]:
        """Yields (track, rank, seconds) for each time at which this rank learned of another rank's submission."""
        for event in self.timed():
            if event["ph"] == "i" and event["name"].isdigit():
                track = event.get("args", {}).get("tensor") or self.tracks.get(event["tid"], "")
                yield track, int(event["name"]), (self.start + event["ts"]) / 1e6

    def timed(self) -> list[Event]:
        """Returns the events that have a time, ordered by time. Events of the same time keep the order of the file."""
        return sorted((event for event in self.events if "ts" in event), key=lambda event: float(event["ts"]))

    def span(self) -> tuple[float, float] | None:
        """Returns the times of the first and the last event, in microseconds since 1970; None without such events."""
        events = self.timed()
        return (self.start + events[0]["ts"], self.start + events[-1]["ts"]) if events else None


def read(paths: Sequence[Path], report: Callable[[str], object] = lambda text: None) -> list[RankTrace]:
    """Reads the traces and returns them by rank, on one clock. For a single file, it reads the other ranks' files, too.

    Among those it leaves out the files of another job, and passes a text about each to `report`. If the given files are
    of several jobs, it raises TraceError. Raises TraceError, OSError.
    """
    traces = [trace for path in paths for trace in _read_one(path)]
    if len(paths) == 1:
        for path in siblings(paths[0]):
            found = _read_one(path)
            if difference := next(filter(None, (_difference(traces[0], trace) for trace in found)), ""):
                report(f"{path} is left out: it is of another job than {paths[0]}: {difference}")
            else:
                traces += found
    traces.sort(key=lambda trace: trace.rank)
    for one, other in itertools.pairwise(traces):
        if one.rank == other.rank:
            raise TraceError(f"{one.path} and {other.path} are both of rank {one.rank}; give the files of one job")
    for trace in traces[1:]:
        if difference := _difference(traces[0], trace):
            raise TraceError(
                f"{traces[0].path} and {trace.path} are of different jobs: {difference}; give the files of one job"
            )
    _align(traces)
    return traces


def _difference(one: RankTrace, other: RankTrace) -> str:
    """Returns the sign that two traces are of different jobs; empty if there is none."""
    if one.size != other.size:
        return f"rank {one.rank} is one of {one.size} ranks, rank {other.rank} one of {other.size}"
    mine, its = one.span(), other.span()
    # Clocks of different hosts may differ by any time.
    if mine and its and one.host == other.host and (mine[1] < its[0] or its[1] < mine[0]):
        seconds = max(its[0] - mine[1], mine[0] - its[1]) / 1e6
        return f"rank {one.rank} and rank {other.rank} ran at different times, with {seconds:.1f} s in between"
    return ""


def siblings(path: Path) -> list[Path]:
    """Returns the files of ranks 1, 2, … that belong to rank 0's file."""
    found = path.parent.glob(f"{_escaped(path.stem)}.rank*{_escaped(path.suffix)}")
    return sorted(other for other in found if other != path)


def _escaped(text: str) -> str:
    return "".join(f"[{character}]" if character in "*?[" else character for character in text)


def _read_one(path: Path) -> list[RankTrace]:
    """Returns the traces in a file, which has several if it was merged."""
    by_process: dict[int, list[Event]] = {}
    for event in _events(path):
        if not isinstance(event, dict):
            raise TraceError(f"{path} is no timeline of perseus_like: its entries are no events; {_GIVE}")
        if part := _wrong_part(event):
            raise TraceError(f"{path} is damaged, or no timeline of perseus_like: an event has {part}; {_GIVE}")
        by_process.setdefault(event.get("pid", -1), []).append(event)
    traces = []
    for events in by_process.values():
        about = next((event.get("args") for event in events if event.get("name") == ABOUT), None)
        if about is None:
            raise TraceError(f"{path} is no timeline of perseus_like: it does not name its rank; {_GIVE}")
        try:
            trace = RankTrace(path, about["rank"], about["size"], about["host"], float(about[EPOCH]), events)
            for event in events:
                if event.get("name") == "thread_name":
                    trace.tracks[event["tid"]] = event["args"]["name"]
                elif event.get("name") == INIT:
                    trace.before_init = float(event["args"]["seconds_before"])
            trace.phases()
            list(trace.ticks())
        except (LookupError, TypeError, ValueError) as error:
            raise TraceError(
                f"{path} is damaged, or no timeline of perseus_like: an event cannot be read, {error!r}; {_GIVE}"
            ) from None
        traces.append(trace)
    return traces


def _wrong_part(event: Event) -> str:
    """Returns the part of an event that has another type than in a timeline, as JSON; empty if there is none."""
    types = {**_PARTS}
    parts = {**event}
    if isinstance(event.get("args"), dict):
        types |= {f"args.{name}": type_ for name, type_ in _ARGUMENTS.items()}
        parts |= {f"args.{name}": value for name, value in event["args"].items()}
    wrong = (name for name, type_ in types.items() if name in parts and not isinstance(parts[name], type_))
    return next((f"{name} = {json.dumps(parts[name])[:40]}" for name in wrong), "")


def _events(path: Path) -> list[Event]:
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise TraceError(f"{path} does not exist; {_GIVE}") from None
    except UnicodeDecodeError:
        raise TraceError(f"{path} is no timeline of perseus_like: it is no text; {_GIVE}") from None
    if not text.strip(" \n[],"):
        raise TraceError(f"{path} has no events: the rank has not written any, or ended before its first; {_GIVE}")
    try:
        whole = json.loads(text)
    except ValueError:
        # The file ends within an event if the disk was full. Each line has one event, so only the last is incomplete.
        whole = list(_whole_lines(text))
        if not whole:
            raise TraceError(f"{path} is no timeline of perseus_like: it is no JSON; {_GIVE}") from None
    if not isinstance(whole, list):
        raise TraceError(f"{path} is no timeline of perseus_like: it has no list of events; {_GIVE}")
    return whole


def _whole_lines(text: str) -> Iterator[Event]:
    for line in text.splitlines():
        try:
            event = json.loads(line.strip().rstrip(","))
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event


def _align(traces: Sequence[RankTrace]) -> None:
    """Aligns the clocks of hosts. A collective ends at nearly the same time on all ranks."""
    if not traces:
        return
    reference = _ends(traces[0].phases())
    shifts: dict[str, list[float]] = {}
    for trace in traces:
        if trace.host == traces[0].host:
            continue
        ends = _ends(trace.phases())
        shifts.setdefault(trace.host, []).extend(ends[key] - reference[key] for key in ends.keys() & reference.keys())
    for trace in traces:
        if shifts.get(trace.host):
            trace.start -= statistics.median(shifts[trace.host]) * 1e6


def _ends(phases: Iterable[Phase]) -> dict[tuple[str, int], float]:
    return {(phase.track, phase.arguments["seq"]): phase.end for phase in phases if "seq" in phase.arguments}


def merge(traces: Sequence[RankTrace]) -> list[Event]:
    """Returns all ranks' events on one clock, which begins with the first event."""
    first = min(trace.start for trace in traces)
    merged: list[Event] = []
    for trace in traces:
        shift = trace.start - first
        for event in trace.events:
            if "ts" in event:
                merged.append({**event, "ts": round(event["ts"] + shift, 3)})
            elif event.get("name") == ABOUT:
                merged.append({**event, "args": {**event["args"], EPOCH: first}})
            else:
                merged.append(event)
    return merged
