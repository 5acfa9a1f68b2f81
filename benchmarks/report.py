"""Tables and pictures of results. `python -m benchmarks.report` puts the tables of the last results into README.md.

python -m benchmarks.report --of results.json    # those of benchmarks.fifteen_minutes into gpu.md and cores.md
python -m benchmarks.report --chart              # draws the first table of the project's README as speed.svg
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from . import ROOT

Data = dict[str, Any]  # as in the JSON
COPIES = MEMCPY, STREAMING = "memcpy", "streaming copy"
LARGE_RATIO = 30  # of the longest bar to the shortest, from which the axis of a picture is logarithmic
OTHER_LOAD = 0.5  # the load beyond the ranks' own from which the machine counts as busy

# --- the table of a benchmark ----------------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """Returns the time with three digits, such as 4.20 µs or 61.7 ms."""
    unit, size = "µs", 1e-6
    if seconds >= 1e-3:
        unit, size = ("s", 1.0) if seconds >= 1 else ("ms", 1e-3)
    value = seconds / size
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"


def table(headers: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    from tabulate import tabulate

    return str(tabulate(lines, headers=headers, tablefmt="github", disable_numparse=True))


def print_microseconds(head: str, rows: Mapping[str, Sequence[float]], columns: Sequence[str]) -> None:
    """Prints seconds as microseconds, a row for each way."""
    print(f"{head:64}" + "".join(f"{column:>9}" for column in columns))
    for name, row in rows.items():
        print(f"{name:64}" + "".join(f"{value * 1e6:9.1f}" for value in row), flush=True)


def bar(
    work: str, quantity: str, sense: str, limit: float, value: float | None, unit: str = "×", recorded: str = ""
) -> Data:
    """Returns a number to be reached. The value is None if the peer that it is compared with was not there."""
    met = None if value is None else value <= limit if sense == "≤" else value >= limit
    about = {"work": work, "quantity": quantity, "sense": sense, "limit": limit, "unit": unit, "recorded": recorded}
    return {**about, "value": value, "met": met}


def names_in(data: Data) -> list[str]:
    return list(dict.fromkeys(name for row in data["rows"] for name in row["contenders"]))


def as_text(data: Data) -> str:
    """Returns both tables in Markdown."""
    names, lines = names_in(data), []
    for row in data["rows"]:
        found = row["contenders"]
        base = next((found[name]["median"] for name in data["ours"] if name in found), None)
        lines.append([row["work"], *(_cell(found[name], base) if name in found else "–" for name in names)])
    parts = [f"### {data['title']}, {data['ranks']} ranks ({data['transport']})"]
    if lines:
        parts.append(table(["", *names], lines))
    if facts := data["facts"]:
        texts = {name: value if isinstance(value, str) else f"{value:.3g}" for name, value in facts.items()}
        parts.append("\n".join(f"- {name}: {text}" for name, text in texts.items()))
    if data["missing"]:
        parts.append("Not here: " + "; ".join(f"{name} ({why})" for name, why in data["missing"].items()) + ".")
    if data["bars"]:
        parts.append(table(["work", "bar", "at", "here", ""], [_bar_line(each) for each in data["bars"]]))
    return "\n\n".join([*parts, *warnings(data)]) + "\n"


def _cell(found: Data, base: float | None) -> str:
    """Returns the median, the spread of the middle half of the rounds, and the ratio of the median to `base`."""
    spread = max(found["high"] - found["median"], found["median"] - found["low"]) / found["median"]
    text = f"{duration(found['median'])} ±{spread:.0%}"
    return text if base is None else f"{text} ({found['median'] / base:.2f})"


def _bar_line(each: Data) -> list[str]:
    value = (each["recorded"] or "–") if each["value"] is None else f"{each['value']:.3g} {each['unit']}"
    verdict = {True: "met", False: "**not met**", None: "not measured here"}[each["met"]]
    return [each["work"], each["quantity"], f"{each['sense']} {each['limit']:g} {each['unit']}", value, verdict]


def warnings(data: Data) -> list[str]:
    """Returns the reasons not to trust the numbers, for the table and the picture."""
    found = ["Quick run: the numbers mean nothing."] if data["quick"] else []
    load = data["machine"]["load_of_the_last_minute"]
    if load > data["ranks"] + OTHER_LOAD:
        found.append(f"The machine was busy with other work: a load of {load:g} for {data['ranks']} ranks.")
    return found


# --- pictures --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def pictures(
    files: Sequence[Path], titles: Sequence[str], width: float = 4, height: float = 3.3
) -> Iterator[list[Any]]:
    """Yields the panels of one figure, in rows of three, and saves it. The same panels give the same bytes."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "perseus_like"})  # text stays text
    from matplotlib import pyplot

    columns = min(len(titles), 3)
    rows = -(-len(titles) // columns)
    size = (width * columns, height * rows)
    figure, grid = pyplot.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    panels = list(grid.flat)
    for axes, title in zip(panels, titles, strict=False):
        axes.set_title(title, fontsize=9)
        axes.grid(alpha=0.3)
    for axes in panels[len(titles) :]:
        axes.set_visible(False)
    yield panels[: len(titles)]
    for file in files:
        figure.savefig(file, dpi=120, metadata={"Date": None} if file.suffix == ".svg" else None)
    pyplot.close(figure)


def plot_lines(
    axes: Any, lines: Mapping[str, Mapping[int, float]], ours: Sequence[str], ticks: Mapping[int, str]
) -> None:
    """Draws a line for each name, over powers of two. Ours are thicker."""
    for name, points in lines.items():
        width = 2.2 if name.startswith(tuple(ours)) else 1.2
        axes.plot(list(points), list(points.values()), label=name, marker="o", linewidth=width)
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(ticks), list(ticks.values()), rotation=45 if len(ticks) > 4 else 0)
    axes.legend(fontsize=7)


def plot(data: Data, file: Path) -> None:
    """Draws time over size if the rows have sizes, otherwise bars. Does nothing without matplotlib."""
    rows, machine = data["rows"], data["machine"]
    if not rows or importlib.util.find_spec("matplotlib") is None:
        return
    title = (
        f"{data['title']}, {data['ranks']} ranks\n{machine['processor']}, {machine['cores']} cores, {data['commit']}"
    )
    with pictures([file.with_suffix(".png"), file.with_suffix(".svg")], [title], 9, 5) as (axes,):
        if all(row["bytes"] for row in rows):
            lines: dict[str, dict[int, float]] = {name: {} for name in names_in(data)}
            for row in rows:
                for name, found in row["contenders"].items():
                    lines[name][row["bytes"]] = found["median"] * 1e6
            plot_lines(axes, lines, data["ours"], {row["bytes"]: row["work"] for row in rows})
            axes.set_yscale("log")
            axes.set_xlabel("size of the tensor")
            axes.set_ylabel("time in µs (median)")
        else:
            _plot_bars(axes, data)
        if notes := warnings(data):
            axes.figure.supxlabel(" ".join(notes), color="tab:red", fontsize=9)


def _plot_bars(axes: Any, data: Data) -> None:
    found = {f"{row['work']}: {name}": each for row in data["rows"] for name, each in row["contenders"].items()}
    values = [each["median"] * 1e3 for each in found.values()]
    spread = [[abs(each[end] - each["median"]) * 1e3 for each in found.values()] for end in ("low", "high")]
    colours = ["tab:blue" if label.rpartition(": ")[2] in data["ours"] else "tab:gray" for label in found]
    axes.barh(range(len(values)), values, xerr=spread, color=colours)
    axes.set_yticks(range(len(values)), list(found), fontsize=8)
    axes.invert_yaxis()
    if max(values) > LARGE_RATIO * min(values):
        axes.set_xscale("log")
    axes.set_xlabel("time in ms (median; middle half of the rounds as a line; ours in blue)")
    axes.set_ylabel("work: contender")


# --- README.md -------------------------------------------------------------------------------------------------------

ORDER = ("allreduce", "many_tensors", "training_step", "tensorflow_step", "tensorflow_eager", "idle")
BEGIN, END = "<!-- last results: begin -->", "<!-- last results: end -->"


def where(data: Data) -> str:
    """Returns the machine, the versions and the commit."""
    machine = data["machine"]
    caches = ", ".join(f"{level} {size}" for level, size in machine["caches"].items())
    return (
        f"{head(data)}; {machine['processor']}, {machine['cores']} cores ({caches}), {machine['memory_gib']} GiB, "
        f"{machine['system']}; load when it ended {machine['load_of_the_last_minute']}; {versions(data)}."
    )


def head(data: Data) -> str:
    return f"{data['when'][:16].replace('T', ' ')}, commit {data['commit']}"


def versions(data: Data) -> str:
    return ", ".join(f"{name} {version}" for name, version in data["versions"].items())


def crowded(two: Data, four: Data) -> list[Data]:
    """Compares four ranks with two ranks that have the same number of bytes together. The runs follow one another."""
    (slow,), (fast,) = (
        [row["contenders"] for row in data["rows"] if row["work"] == work] or [{}]
        for data, work in ((four, "32 MiB"), (two, "64 MiB"))
    )
    bars = []
    for name in two["ours"][:2]:
        value = slow[name]["median"] / fast[name]["median"] if name in slow and name in fast else None
        bars.append(bar(f"{name}: 4 ranks × 32 MiB", "time / 2 ranks × 64 MiB", "≤", 2.5, value))
    return bars


def block(folder: Path) -> str:
    """Returns the text between the marks."""
    results = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    found = [results[name] for name in ORDER if name in results]
    if not found:
        raise SystemExit(f"no results in {folder}; run `make bench`")
    if "allreduce" in results and "allreduce-4" in results:
        results["allreduce"]["bars"] += crowded(results["allreduce"], results["allreduce-4"])
    parts = [where(found[0])]
    for data in found:
        parts.append(as_text(data).strip())
        if data["commit"] != found[0]["commit"]:
            parts.append(f"(At commit {data['commit']}.)")
    return "\n\n".join(parts)


def rewrite(page: Path, text: str) -> None:
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page} has no place marked with {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


# --- fifteen minutes -------------------------------------------------------------------------------------------------

# The work that cores.svg shows, and the contenders that it leaves out.
PANELS = ("4 B", "64 KiB", "64 MiB", "154 like ResNet-50, 143 MiB", "300 of 1 KiB", "step with Adam")
NOT_DRAWN = {"exchange alone", "gloo, DDP's buckets", "ours, grouped"}
Times = dict[str, dict[str, dict[int, float]]]  # the medians by row, contender and ranks


def cores_results(data: Data, placement: str) -> list[Data]:
    steps = [step.get("result") for step in data["steps"].values() if step["part"] == "cores"]
    return sorted((each for each in steps if each and each["placement"] == placement), key=lambda each: each["ranks"])


def times_of(results: Sequence[Data]) -> Times:
    found: Times = {}
    for each in results:
        for row in each["rows"]:
            for name, summary in row["contenders"].items():
                found.setdefault(row["work"], {}).setdefault(name, {})[each["ranks"]] = summary["median"]
    return found


def ranks_of(times: Times) -> list[int]:
    return sorted({count for rows in times.values() for row in rows.values() for count in row})


def over_ranks(times: Times) -> str:
    """Returns a table of the times over the number of ranks."""
    ranks, lines = ranks_of(times), []
    for work, contenders in times.items():
        for name, row in contenders.items():
            lines.append([work, name, *(duration(row[count]) if count in row else "–" for count in ranks)])
    return table(["", "", *(f"{count} ranks" for count in ranks)], lines)


def goals(times: Times) -> str:
    """Returns a table of the goals, and of what was reached."""
    step = next((work for work in times if work.startswith(PANELS[5])), "")

    def least(work: str, count: int, *names: str) -> float:
        return min((times.get(work, {}).get(name, {}).get(count, math.inf) for name in names), default=math.inf)

    lines = []
    for count in ranks_of(times):
        plain = least("64 MiB", count, *COPIES)
        gloo = least(PANELS[3], count, "gloo", "gloo, DDP's buckets")
        by_shard = least(step, count, "DistributedOptimizer, shard=True")
        values = (
            least("64 MiB", count, "ours, arena") / plain,
            least("4 B", count, "ours, private") * 1e6 / (3 + 2 * math.log2(max(count / 2, 1))),
            gloo / least(PANELS[3], count, "ours"),
            by_shard / least(step, count, "one process alone"),
        )
        lines.append([f"{value:.2f}" if math.isfinite(value) else "–" for value in values])
    names = (
        ("64 MiB in the arena / best plain copy", "≤ 1.2"),
        ("one float / (3 + 2·log₂(ranks / 2)) µs", "≤ 1"),
        ("gloo / ours, 154 tensors", "≥ 6"),
        ("shard=True / one process alone, step with Adam", "≤ 0.8 at 8"),
    )
    rows = [[*name, *column] for name, *column in zip(names, *lines, strict=True)]
    return table(["goal", "", *(f"{count} ranks" for count in ranks_of(times))], rows)


def report_cores(data: Data, folder: Path) -> None:
    """Puts the results on pinned ranks into cores.md, and draws cores.svg."""
    usual = cores_results(data, "spread")
    if not usual:
        return
    times = times_of(usual)
    parts = [where(usual[0]), "![Time over the number of ranks](cores.svg)", goals(times), over_ranks(times)]
    for placement in ("packed", "whole", "nodes"):
        if other := cores_results(data, placement):
            parts += [f"Placement `{placement}`:", over_ranks(times_of(other))]
    parts += warnings(max(usual, key=lambda each: float(each["machine"]["load_of_the_last_minute"])))
    rewrite(folder / "cores.md", "\n\n".join(parts))
    works = [work for panel in PANELS for work in times if work.startswith(panel)]
    with pictures([folder / "cores.svg"], works) as panels:
        for work, axes in zip(works, panels, strict=True):
            lines = {
                name: {count: seconds * 1e3 for count, seconds in row.items()}
                for name, row in times[work].items()
                if name not in NOT_DRAWN
            }
            plot_lines(axes, lines, ("ours", "Distributed"), {count: str(count) for count in ranks_of(times)})
            axes.set_yscale("log")
            axes.minorticks_off()
            axes.set_xlabel("ranks")
            axes.set_ylabel("ms")


def report_gpu(data: Data, folder: Path) -> None:
    """Puts the results on a GPU into gpu.md, and draws the times of a step of the transformer as gpu.svg."""
    listed = {name: step for name, step in data["steps"].items() if step["part"] == "gpu"}
    if not listed:
        return
    call = data["calls"][min(step["call"] for step in listed.values())]
    lines = []
    for name, step in listed.items():
        said = "<br>".join(step.get("said") or [step["text"]])
        lines.append([f"`{name}`", step["verdict"], f"{step.get('seconds', 0):.0f} s", said])
    parts = [f"{head(call)}; {call['gpu'] or 'no GPU: by a stand-in'}; {versions(call)}."]
    parts.append(table(["step", "", "took", "result"], lines))
    times = (listed.get("transformer", {}).get("result") or {}).get("microseconds of a step", {})
    if times:
        parts.append("![A step of the transformer](gpu.svg)")
        shown = {"backward": "the host's time in backward", "queued": "until it is queued", "whole": "until it is done"}
        with pictures([folder / "gpu.svg"], list(shown.values())) as panels:
            for part, axes in zip(shown, panels, strict=True):
                axes.barh(list(times), [each[part] / 1e3 for each in times.values()])
                axes.set_xlabel("ms")
    if data["small"]:
        parts.append("Small sizes: the numbers mean nothing.")
    rewrite(folder / "gpu.md", "\n\n".join(parts))


# --- the chart of the project's README -------------------------------------------------------------------------------

PICTURE = ROOT / "benchmarks/speed.svg"
_UNITS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0}
_TIME = re.compile(r"(\d+(?:\.\d+)?) (µs|ms|s)\b")
_LEFT, _BARS, _BAR, _GAP = 300, 400, 14, 12  # pixels
# A reader's dark theme gets a dark picture.
_HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">
<title>{title}</title>
<style>
text {{ font: 12px system-ui, sans-serif; fill: #1f2328 }}
.back {{ fill: #ffffff }} .bar0 {{ fill: #0a7d72 }} .bar1 {{ fill: #8c959f }} .bar2 {{ fill: #c4ccd4 }}
@media (prefers-color-scheme: dark) {{
text {{ fill: #e6edf3 }}
.back {{ fill: #0d1117 }} .bar0 {{ fill: #2cb5a5 }} .bar1 {{ fill: #8b949e }} .bar2 {{ fill: #4b535d }}
}}
</style>
<rect class="back" width="{width}" height="{height}" rx="6"/>
"""
ChartRow = tuple[str, list[tuple[str, float] | None]]  # the work; the time of each contender, as text and in seconds


def chart_rows(text: str) -> tuple[list[str], list[ChartRow]]:
    """Returns the contenders, and the rows of the first table under "Numbers" that have times of several contenders."""
    lines = [line for line in text.partition("\n## Numbers\n")[2].splitlines() if line.startswith("|")]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    head, rows = table[0], []
    for cells in table[2:]:
        if len(cells) != len(head):  # the next table
            break
        found = [_TIME.search(cell) for cell in cells[1:]]
        times = [None if each is None else (each[0], float(each[1]) * _UNITS[each[2]]) for each in found]
        if sum(each is not None for each in times) > 1:
            rows.append((cells[0].partition(";")[0].replace("`", ""), times))
    return head[1:], rows


def draw_chart(readme: Path = ROOT / "README.md", picture: Path = PICTURE) -> None:
    """Draws the table. The longest bar of each row has the same length. The picture has no number of its own."""
    contenders, rows = chart_rows(readme.read_text())
    body, left, top = "", _LEFT, 40
    for place, name in enumerate(contenders):
        body += f'<rect class="bar{place}" x="{left}" y="14" width="12" height="12" rx="2"/>\n'
        body += f'<text x="{left + 18}" y="24">{escape(name)}</text>\n'
        left += 50 + 7 * len(name)
    for work, times in rows:
        present = [(place, *each) for place, each in enumerate(times) if each is not None]
        longest = max(seconds for _, _, seconds in present)
        middle = top + _BAR * len(present) / 2 + 4
        body += f'<text x="{_LEFT - 10}" y="{middle:.0f}" text-anchor="end">{escape(work)}</text>\n'
        for place, label, seconds in present:
            width = max(1.0, _BARS * seconds / longest)
            body += f'<rect class="bar{place}" x="{_LEFT}" y="{top}" width="{width:.1f}" height="{_BAR - 2}"/>\n'
            body += f'<text x="{_LEFT + width + 6:.1f}" y="{top + _BAR - 4}">{escape(label)}</text>\n'
            top += _BAR
        top += _GAP
    title = escape("Times of " + ", ".join(contenders) + "; shorter is better")
    picture.write_text(_HEAD.format(width=_LEFT + _BARS + 80, height=top, title=title) + body + "</svg>\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--readme", type=Path, default=ROOT / "benchmarks" / "README.md")
    parser.add_argument("--of", type=Path, metavar="FILE", help="the results of benchmarks.fifteen_minutes")
    parser.add_argument("--folder", type=Path, default=ROOT / "benchmarks", help="of gpu.md and cores.md, for --of")
    parser.add_argument("--chart", action="store_true", help="draw the chart of the project's README")
    options = parser.parse_args()
    if options.chart:
        draw_chart()
    elif options.of is not None:
        data = json.loads(options.of.read_text())
        report_cores(data, options.folder)
        report_gpu(data, options.folder)
    else:
        rewrite(options.readme, block(options.results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
