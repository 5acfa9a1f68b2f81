"""Draws a summary with matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..host_facts import replacing
from .files import TraceError
from .summary import Summary, TensorTime
from .units import time_unit

SHOWN = 10
FORMATS = (".png", ".svg", ".pdf")
_LONGEST_NAME = 40


def check(path: Path) -> None:
    """Raises TraceError if the suffix of `path` is no format of a picture, or if matplotlib is not installed."""
    if path.suffix.lower() not in FORMATS:
        raise TraceError(f"--draw {path}: the name of a picture ends with {', '.join(FORMATS)}; give such a name")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise TraceError(
            "drawing needs matplotlib, which is not installed: pip install 'perseus-like[trace]'"
        ) from None


def draw(summary: Summary, path: Path) -> None:
    """Writes a PNG, SVG or PDF, depending on the suffix of `path`. Call `check` before."""
    from matplotlib.figure import Figure

    tensors = [tensor for tensor in summary.tensors[:SHOWN] if tensor.waited > 0]
    caused = [(rank, seconds) for rank, seconds in sorted(summary.caused.items()) if seconds > 0]
    panels: list[tuple[float, Callable[[Any], None]]] = [
        (1.6 + 0.4 * len(summary.ranks), lambda axes: _draw_ranks(axes, summary))
    ]
    if caused:
        panels.append((1.0 + 0.4 * len(caused), lambda axes: _draw_slow(axes, caused)))
    if tensors:
        panels.append((1.0 + 0.3 * len(tensors), lambda axes: _draw_tensors(axes, tensors)))
    heights = [height for height, _ in panels]
    figure = Figure(figsize=(10, 1.0 + sum(heights)), layout="constrained")
    for axes, (_, fill) in zip(
        figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0], panels, strict=True
    ):
        fill(axes)
    with replacing(path) as file:
        figure.savefig(file, format=path.suffix[1:].lower(), bbox_inches="tight")


def _draw_ranks(axes: Any, summary: Summary) -> None:
    labels = [f"rank {rank.rank}" for rank in summary.ranks]
    parts = [
        ("before init()", "tab:purple", [rank.before_init or 0.0 for rank in summary.ranks]),
        ("computing", "tab:green", [rank.computing for rank in summary.ranks]),
        ("waiting for the slowest rank", "tab:orange", [rank.waiting for rank in summary.ranks]),
        ("communicating, not overlapped", "tab:blue", [rank.exposed for rank in summary.ranks]),
        ("negotiating", "tab:gray", [rank.negotiating for rank in summary.ranks]),
    ]
    scale, unit = time_unit(max((rank.total for rank in summary.ranks), default=0.0))
    left = [0.0] * len(labels)
    for label, color, seconds in parts:
        widths = [scale * each for each in seconds]
        axes.barh(labels, widths, left=left, label=label, color=color)
        left = [before + more for before, more in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    axes.set_title("Where the time went")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.35 / (0.4 + 0.2 * len(labels))), ncols=2, frameon=False)


def _draw_slow(axes: Any, caused: Sequence[tuple[int, float]]) -> None:
    scale, unit = time_unit(max(seconds for _, seconds in caused))
    axes.barh([f"rank {rank}" for rank, _ in caused], [scale * seconds for _, seconds in caused], color="tab:red")
    axes.invert_yaxis()
    axes.set_xlabel(f"{unit} that other ranks waited because this rank was the last, sum of all ranks")
    axes.set_title("Who was slow")


def _draw_tensors(axes: Any, tensors: Sequence[TensorTime]) -> None:
    scale, unit = time_unit(max(tensor.waited for tensor in tensors))
    places = range(len(tensors))
    axes.barh(places, [scale * tensor.waited for tensor in tensors], color="tab:orange")
    axes.set_yticks(places, [tensor.label(_LONGEST_NAME) for tensor in tensors])
    axes.invert_yaxis()
    axes.set_xlabel(f"{unit} that ranks waited for the slowest, sum of all ranks")
    axes.set_title("Tensors with the longest waits")
