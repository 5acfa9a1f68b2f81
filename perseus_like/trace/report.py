"""Formats a summary as text."""

from __future__ import annotations

from collections.abc import Sequence

from .summary import RankTime, Summary

SHOWN = 12


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
        return f"{seconds:.3f} s {100 * seconds / rank.total if rank.total else 0:5.1f} %"

    rows = [
        (
            f"rank {rank.rank} ({rank.host})",
            f"{rank.total:.3f} s",
            share(rank.computing, rank),
            share(rank.waiting, rank),
            share(rank.exposed, rank),
            share(rank.negotiating, rank),
            f"{rank.communicating:.3f} s",
            f"{100 * rank.overlap:.1f} %",
        )
        for rank in ranks
    ]
    head = ("where the time went", "total", "computing", "waiting for the slowest rank", "communicating", "negotiating")
    return table((*head, "communication", "of it overlapped"), rows)


def _slowest(summary: Summary) -> str:
    worst = max(summary.caused, key=lambda rank: summary.caused[rank], default=None)
    if worst is None or summary.caused[worst] <= 0:
        return ""
    totals = {each.rank: each.total for each in summary.ranks}
    hosts = {each.rank: f" ({each.host})" for each in summary.ranks}
    rows = []
    for rank, seconds in sorted(summary.caused.items(), key=lambda each: -each[1]):
        others = sum(total for other, total in totals.items() if other != rank)
        share = f"{100 * seconds / others:.1f} %" if others else "–"
        rows.append((f"rank {rank}{hosts.get(rank, '')}", f"{seconds:.3f} s", share))
    return table(("the slowest rank", "waits of all other ranks", "of their time"), rows)


def _tensors(summary: Summary) -> str:
    rows = []
    for tensor in summary.tensors[:SHOWN]:
        last = ", ".join(f"rank {rank} ({count})" for rank, count in tensor.slowest.most_common(2))
        speed = tensor.bytes / tensor.communicating / 1e9 if tensor.communicating > 0 else 0.0
        rows.append(
            (
                tensor.tensor,
                str(tensor.count),
                f"{tensor.bytes / max(1, tensor.count) / 1024:.1f} KiB",
                f"{1e3 * tensor.communicating:.2f} ms",
                f"{speed:.2f} GB/s",
                f"{1e3 * tensor.waited:.2f} ms",
                last or "–",
            )
        )
    head = ("tensor", "times", "size", "communicating", "speed", "ranks waited", "last to submit (times)")
    more = len(summary.tensors) - len(rows)
    return table(head, rows) + (f"… and {more} more tensors\n" if more > 0 else "") if rows else ""
