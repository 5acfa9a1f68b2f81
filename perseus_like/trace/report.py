"""Formats a summary as text."""

from __future__ import annotations

from collections.abc import Sequence

from .summary import START_UP, RankTime, Summary
from .units import shortened, size, speed, time

SHOWN = 12
# No line has more than 80 columns.
_LONGEST_NAME = 28
_LONGEST_HOST = 8
# Below this size of a tensor, the time is that of messages, and a speed would say nothing.
_SMALLEST_WITH_SPEED = 64 << 10
# Names of the library's own collectives, which go with a training's gradients.
_OWN = {
    ".digest": "ranks compare their parameters, once",
    ".order": "ranks agree on the order of gradients, once",
    ".changed": "ranks tell each other whether gradients are missing, each step",
    ".changes": "ranks tell each other which gradients are missing",
}


def render(summary: Summary) -> str:
    """Returns the summary as lines of text."""
    parts = [_ranks(summary.ranks)]
    if summary.missing:
        parts.append(
            f"The files of {summary.missing} of the job's ranks are missing. The summary has only the times at which "
            "the first rank learned of their submissions.\n"
        )
    parts += [_communication(summary.ranks), _slowest(summary), _tensors(summary)]
    return "\n".join(part for part in parts if part)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Formats a table. The first column is aligned to the left, the others to the right."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = []
    for row in [head, *rows]:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def _ranks(ranks: Sequence[RankTime]) -> str:
    rows: list[tuple[str, ...]] = []
    for rank in ranks:
        parts = (rank.before_init, rank.computing, rank.waiting, rank.exposed, rank.negotiating)
        rows.append(
            (_rank(rank.rank, rank.host), *("–" if part is None else time(part) for part in (rank.total, *parts)))
        )
        shares = ("" if part is None else f"{100 * part / rank.total if rank.total else 0:.0f}%" for part in parts)
        rows.append(("", "", *shares))
    head = ("rank (host)", "total", "before init()", "computing", "waiting", "blocked", "negotiating")
    return (
        "Where the time went\n" + table(head, rows) + ("waiting: for the slowest rank; blocked: until data was sent\n")
    )


def _communication(ranks: Sequence[RankTime]) -> str:
    rows = [(_rank(rank.rank, rank.host), time(rank.communicating), f"{100 * rank.overlap:.0f}%") for rank in ranks]
    return table(("rank (host)", "all communication", "overlapped"), rows) + (
        "overlapped: the part during which no thread waited\n"
    )


def _rank(rank: int, host: str) -> str:
    return f"{rank} ({shortened(host.partition('.')[0], _LONGEST_HOST)})" if host else str(rank)


def _slowest(summary: Summary) -> str:
    worst = max(summary.caused, key=lambda rank: summary.caused[rank], default=None)
    if worst is None or summary.caused[worst] <= 0:
        return ""
    totals = {each.rank: each.total for each in summary.ranks}
    hosts = {each.rank: each.host for each in summary.ranks}
    rows = []
    for rank, seconds in sorted(summary.caused.items(), key=lambda each: -each[1]):
        if seconds <= 0:
            break
        others = sum(total for other, total in totals.items() if other != rank)
        share = f"{100 * seconds / others:.1f} %" if others else "–"
        rows.append((_rank(rank, hosts.get(rank, "")), time(seconds), share))
    return table(("who was slow", "waits of all other ranks", "of their time"), rows)


def _tensors(summary: Summary) -> str:
    shown = summary.tensors[:SHOWN]
    if not shown:
        return ""
    rows = []
    for row in shown:
        each = row.bytes / max(1, row.count)
        has_speed = each >= _SMALLEST_WITH_SPEED and row.communicating > 0 and row.tensors != [START_UP]
        rows.append(
            (
                row.label(_LONGEST_NAME),
                str(row.count),
                size(each),
                time(row.communicating),
                speed(row.bytes / row.communicating) if has_speed else "–",
                time(row.waited),
                str(row.slowest.most_common(1)[0][0]) if row.slowest else "–",
            )
        )
    text = table(("tensor", "times", "size", "sending", "speed", "waits", "last"), rows)
    more = len(summary.tensors) - len(rows)
    notes = [f"… and {more} more"] if more > 0 else []
    notes.append("last: the rank for which the others waited most often")
    if any(len(row.tensors) > 1 for row in shown):
        notes.append("+1: one more tensor, which waited at the same times")
    if any(row.tensors == [START_UP] for row in shown):
        notes.append(f"{START_UP}: all before the first step, such as broadcasts")
    own = [row.tensors[0] for row in shown if row.tensors[0].startswith("allreduce.gradients")]
    notes += [f"…{end}: {what}" for end, what in _OWN.items() if any(name.endswith(end) for name in own)]
    return text + "\n".join(notes) + "\n"
