"""Formats a summary as text."""

from __future__ import annotations

from collections.abc import Sequence

from .summary import RankTime, Summary
from .units import shortened, size, speed, time

SHOWN = 12
_LONGEST_NAME = 34  # so that no line has more than 100 columns


def render(summary: Summary) -> str:
    """Returns the summary as lines of text."""
    parts = [_ranks(summary.ranks)]
    if summary.missing:
        parts.append(
            f"The files of {summary.missing} of the job's ranks are missing. The summary has only the times at which "
            "the first rank learned of their submissions.\n"
        )
    parts += [_slowest(summary), _tensors(summary)]
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
    def share(seconds: float, rank: RankTime) -> str:
        return f"{time(seconds)} {100 * seconds / rank.total if rank.total else 0:3.0f}%"

    rows = [
        (
            _rank(rank.rank, rank.host),
            time(rank.total),
            share(rank.computing, rank),
            share(rank.waiting, rank),
            share(rank.exposed, rank),
            share(rank.negotiating, rank),
            f"{time(rank.communicating)} {100 * rank.overlap:3.0f}%",
        )
        for rank in ranks
    ]
    head = ("where the time went", "total", "computing", "waiting", "blocked", "negotiating", "sent, overlap")
    return table(head, rows) + (
        "waiting: for the slowest rank; blocked: until data was sent;\n"
        "sent, overlap: all communication, and the part of it for which no thread waited\n"
    )


def _rank(rank: int, host: str) -> str:
    return f"rank {rank} ({shortened(host.partition('.')[0], 10)})" if host else f"rank {rank}"


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
    rows = []
    for tensor in summary.tensors[:SHOWN]:
        last = ", ".join(f"{rank} ({count})" for rank, count in tensor.slowest.most_common(1))
        rows.append(
            (
                shortened(tensor.tensor, _LONGEST_NAME),
                str(tensor.count),
                size(tensor.bytes / max(1, tensor.count)),
                time(tensor.communicating),
                speed(tensor.bytes / tensor.communicating) if tensor.communicating > 0 else "–",
                time(tensor.waited),
                last or "–",
            )
        )
    head = ("tensor", "times", "size", "sending", "speed", "waits", "last rank (times)")
    more = len(summary.tensors) - len(rows)
    return table(head, rows) + (f"… and {more} more tensors\n" if more > 0 else "") if rows else ""
