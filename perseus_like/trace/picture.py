"""Draws a summary with matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..system import replacing
from .files import TraceError
from .summary import Summary

SHOWN = 10


def draw(summary: Summary, path: Path) -> None:
    """Writes a PNG, SVG or PDF, depending on the suffix of `path`. TraceError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise TraceError(
            "drawing needs matplotlib, which is not installed: pip install 'perseus-like[trace]'"
        ) from None
    tensors = [tensor for tensor in summary.tensors[:SHOWN] if tensor.waited > 0]
    heights = (
        [1.0 + 0.4 * len(summary.ranks), 1.0 + 0.3 * len(tensors)] if tensors else [1.0 + 0.4 * len(summary.ranks)]
    )
    figure = Figure(figsize=(10, 1.2 + sum(heights)), layout="constrained")
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    _draw_ranks(axes[0], summary)
    if tensors:
        names = [tensor.tensor for tensor in tensors][::-1]
        axes[1].barh(names, [1e3 * tensor.waited for tensor in tensors][::-1], color="tab:orange")
        axes[1].set_xlabel("milliseconds that ranks waited for the slowest, sum of all ranks")
        axes[1].set_title("Tensors with the longest waits")
    with replacing(path) as file:
        figure.savefig(file)


def _draw_ranks(axes: Any, summary: Summary) -> None:
    labels = [f"rank {rank.rank}" for rank in summary.ranks]
    parts = [
        ("computing", "tab:green", [rank.computing for rank in summary.ranks]),
        ("waiting for the slowest rank", "tab:orange", [rank.waiting for rank in summary.ranks]),
        ("communicating, not overlapped", "tab:blue", [rank.exposed for rank in summary.ranks]),
        ("negotiating", "tab:gray", [rank.negotiating for rank in summary.ranks]),
    ]
    left = [0.0] * len(labels)
    for label, color, seconds in parts:
        axes.barh(labels, seconds, left=left, label=label, color=color)
        left = [before + more for before, more in zip(left, seconds, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    axes.set_title("Where the time went")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.12), ncols=4, frameon=False)
