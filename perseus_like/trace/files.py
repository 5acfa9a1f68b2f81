"""The timeline files of a job's ranks: finding, reading and putting them on one clock."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]
ABOUT, EPOCH = "perseus_like", "start_time_since_epoch_in_micros"


class TraceError(Exception):
    """A file that is no timeline of ours, or files that do not belong together."""


@dataclass
class Phase:
    """What happened on a track from `begin` to `end`, in seconds."""

    name: str
    track: str
    begin: float
    end: float
    arguments: dict[str, Any]
    depth: int


@dataclass
class RankTrace:
    """The file of one rank. Its events have their times in microseconds after `start`, which is one since 1970."""

    path: Path
    rank: int
    size: int
    host: str
    start: float
    events: list[Event]
    tracks: dict[int, str] = field(default_factory=dict)

    def phases(self) -> list[Phase]:
        """In the order of their ends. What was under way when the file ended lasts until its last event."""
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
        """(track, rank, seconds) of each moment at which this rank heard that a rank had asked for a tensor."""
        for event in self.timed():
            if event["ph"] == "i" and event["name"].isdigit():
                track = event.get("args", {}).get("tensor") or self.tracks.get(event["tid"], "")
                yield track, int(event["name"]), (self.start + event["ts"]) / 1e6

    def timed(self) -> list[Event]:
        """What has a time, in its order; begins of one moment before the ends that follow them in the file."""
        return sorted((event for event in self.events if "ts" in event), key=lambda event: float(event["ts"]))


def read(paths: Sequence[Path]) -> list[RankTrace]:
    """The ranks' traces, by rank, on one clock. A single file brings those of the other ranks beside it.

    Raises TraceError, OSError.
    """
    if len(paths) == 1:
        paths = [paths[0], *siblings(paths[0])]
    traces = sorted((trace for path in paths for trace in _read_one(path)), key=lambda trace: trace.rank)
    for one, other in itertools.pairwise(traces):
        if one.rank == other.rank:
            raise TraceError(f"{one.path} and {other.path} are both of rank {one.rank}; give the files of one job")
    _align(traces)
    return traces


def siblings(path: Path) -> list[Path]:
    """The files of ranks 1, 2, … that belong to rank 0's."""
    found = path.parent.glob(f"{_escaped(path.stem)}.rank*{_escaped(path.suffix)}")
    return sorted(other for other in found if other != path)


def _escaped(text: str) -> str:
    return "".join(f"[{character}]" if character in "*?[" else character for character in text)


def _read_one(path: Path) -> list[RankTrace]:
    """More than one where the file was merged from several."""
    by_process: dict[int, list[Event]] = {}
    for event in _events(path):
        by_process.setdefault(event.get("pid", -1), []).append(event)
    traces = []
    for events in by_process.values():
        about = next((event["args"] for event in events if event.get("name") == ABOUT), None)
        if about is None:
            raise TraceError(f"{path} is no timeline that perseus_like wrote: it does not say of which rank it is")
        trace = RankTrace(path, about["rank"], about["size"], about["host"], float(about[EPOCH]), events)
        for event in events:
            if event.get("name") == "thread_name":
                trace.tracks[event["tid"]] = event["args"]["name"]
        traces.append(trace)
    return traces


def _events(path: Path) -> list[Event]:
    text = path.read_text()
    try:
        whole = json.loads(text)
    except ValueError:
        # Cut off in the middle of a write (the disk was full): one event a line is whole or it is the last.
        whole = list(_whole_lines(text))
    if not isinstance(whole, list):
        raise TraceError(f"{path} is no timeline that perseus_like wrote: it holds no list of events")
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
    """Clocks of hosts differ. What ends a collective happens at one time everywhere, give or take its last message."""
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
    """All ranks' events on one clock that begins with the first file."""
    origin = min(trace.start for trace in traces)
    merged: list[Event] = []
    for trace in traces:
        shift = trace.start - origin
        for event in trace.events:
            if "ts" in event:
                merged.append({**event, "ts": round(event["ts"] + shift, 3)})
            elif event["name"] == ABOUT:
                merged.append({**event, "args": {**event["args"], EPOCH: origin}})
            else:
                merged.append(event)
    return merged
