"""Puts the tables of the last results into README.md: `python -m benchmarks.report`.

`python -m benchmarks.report --of results.json` puts those of benchmarks.fifteen_minutes into gpu.md and cores.md, and
draws gpu.svg and cores.svg.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import ROOT
from .record import COPIES, Bar, as_text, duration, pictures, warnings

ORDER = ("allreduce", "many_tensors", "training_step", "tensorflow_step", "tensorflow_eager", "idle")
BY_SHARD = "DistributedOptimizer, shard=True"
BEGIN, END = "<!-- last results: begin -->", "<!-- last results: end -->"


def where(data: dict[str, Any]) -> str:
    """Returns the machine, the versions and the commit."""
    machine = data["machine"]
    caches = ", ".join(f"{level} {size}" for level, size in machine["caches"].items())
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    return (
        f"{data['when'][:16].replace('T', ' ')}, commit {data['commit']}; {machine['processor']}, "
        f"{machine['cores']} cores ({caches}), {machine['memory_gib']} GiB, {machine['system']}; load when it ended "
        f"{machine['load_of_the_last_minute']}; {versions}."
    )


def crowded(two: dict[str, Any], four: dict[str, Any]) -> list[Bar]:
    """Compares four ranks with two ranks that have the same number of bytes together. The runs follow one another."""

    def median(data: dict[str, Any], work: str, name: str) -> float | None:
        rows = [row["contenders"] for row in data["rows"] if row["work"] == work]
        return float(rows[0][name]["median"]) if rows and name in rows[0] else None

    bars = []
    for name in two["ours"]:
        slow, fast = median(four, "32 MiB", name), median(two, "64 MiB", name)
        value = None if slow is None or fast is None else slow / fast
        bars.append(Bar(f"{name}: 4 ranks × 32 MiB", "time / 2 ranks × 64 MiB", "≤", 2.5, value))
    return bars


def block(folder: Path) -> str:
    """Returns the text between the marks."""
    results = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    found = [results[name] for name in ORDER if name in results]
    if not found:
        raise SystemExit(f"no results in {folder}; run `make bench`")
    if "allreduce" in results and "allreduce-4" in results:
        bars = [bar.as_dict() for bar in crowded(results["allreduce"], results["allreduce-4"])]
        results["allreduce"]["bars"] += bars
    parts = [where(found[0])]
    for data in found:
        text = as_text(data)
        if data["commit"] != found[0]["commit"]:
            text += f"\n(At commit {data['commit']}.)\n"
        parts.append(text)
    return "\n\n".join(part.strip() for part in parts)


def rewrite(readme: Path, text: str) -> None:
    before, begin, rest = readme.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{readme} has no place marked with {BEGIN} and {END}")
    readme.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


# --- fifteen minutes -------------------------------------------------------------------------------------------------

# The work that cores.svg shows, and the contenders that it leaves out.
PANELS = ("4 B", "64 KiB", "64 MiB", "154 like ResNet-50, 143 MiB", "300 of 1 KiB", "step with Adam")
NOT_DRAWN = {"exchange alone", "gloo, DDP's buckets", "ours, grouped"}
Runs = Mapping[int, Mapping[str, Any]]  # by ranks
Times = Mapping[int, float]  # by ranks, in seconds


def table(headers: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    from tabulate import tabulate

    return str(tabulate(lines, headers=headers, tablefmt="github", disable_numparse=True))


def cores_runs(data: Mapping[str, Any], placement: str) -> dict[str, dict[int, Mapping[str, Any]]]:
    """Returns the results on the cores, by their work and then by their ranks."""
    found: dict[str, dict[int, Mapping[str, Any]]] = {}
    for step in data["steps"].values():
        result = step.get("result")
        if step["part"] == "cores" and result and result["placement"] == placement:
            found.setdefault(result["work"], {})[result["ranks"]] = result
    return {work: dict(sorted(runs.items())) for work, runs in found.items()}


def times_of(runs: Runs) -> dict[str, dict[str, dict[int, float]]]:
    """Returns the medians by row, contender and ranks."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for ranks, run in runs.items():
        for row in run["rows"]:
            for name, summary in row["contenders"].items():
                found.setdefault(row["work"], {}).setdefault(name, {})[ranks] = summary["median"]
    return found


def over_ranks(times: Mapping[str, Mapping[str, Times]], ranks: Sequence[int]) -> str:
    """Returns a table of the times over the number of ranks."""
    lines = []
    for work, contenders in times.items():
        for name, row in contenders.items():
            lines.append([work, name, *(duration(row[count]) if count in row else "–" for count in ranks)])
    return table(["", "", *(f"{count} ranks" for count in ranks)], lines)


def goals(times: Mapping[str, Mapping[str, Times]], ranks: Sequence[int]) -> str:
    """Returns a table of the goals, and of what was reached."""

    def over(work: str, names: Sequence[str], others: Sequence[str]) -> Callable[[int], float | None]:
        def value(count: int) -> float | None:
            rows = {name: row[count] for name, row in times.get(work, {}).items() if count in row}
            own, theirs = ([rows[name] for name in some if name in rows] for some in (names, others))
            return min(own) / min(theirs) if own and theirs else None

        return value

    def one_float(count: int) -> float | None:
        found = times.get("4 B", {}).get("ours, private", {}).get(count)
        return None if found is None else found * 1e6 / (3 + 2 * math.log2(max(count / 2, 1)))

    step = next((work for work in times if work.startswith("step with Adam")), "")
    ours, gloo = ("ours", "ours, arena"), ("gloo", "gloo, DDP's buckets")
    listed = (
        ("64 MiB in the arena / best plain copy", "≤ 1.2", over("64 MiB", ["ours, arena"], COPIES)),
        ("one float / (3 + 2·log₂(ranks / 2)) µs", "≤ 1", one_float),
        ("gloo / ours, 154 tensors", "≥ 6", over(PANELS[3], gloo, ours[:1])),
        ("shard=True / one process alone, step with Adam", "≤ 0.8 at 8", over(step, [BY_SHARD], ["one process alone"])),
    )
    lines = []
    for name, goal, value in listed:
        found = [value(count) for count in ranks]
        lines.append([name, goal, *("–" if each is None else f"{each:.2f}" for each in found)])
    return table(["goal", "", *(f"{count} ranks" for count in ranks)], lines)


def cores_block(data: Mapping[str, Any], picture: str) -> str:
    usual = cores_runs(data, "spread")
    if not usual:
        return ""
    ranks = sorted({count for runs in usual.values() for count in runs})
    times = {row: each for runs in usual.values() for row, each in times_of(runs).items()}
    first = next(iter(next(iter(usual.values())).values()))
    shown = f"![Time over the number of ranks]({picture})"
    parts = [where(dict(first)), shown, goals(times, ranks), over_ranks(times, ranks)]
    for placement in ("packed", "whole", "nodes"):
        for runs in cores_runs(data, placement).values():
            parts += [f"Placement `{placement}`:", over_ranks(times_of(runs), sorted(runs))]
    loaded = [run for runs in usual.values() for run in runs.values()]
    parts += warnings(max(loaded, key=lambda run: float(run["machine"]["load_of_the_last_minute"])))
    return "\n\n".join(filter(None, parts))


def draw_cores(data: Mapping[str, Any], picture: Path) -> None:
    times = {row: each for runs in cores_runs(data, "spread").values() for row, each in times_of(runs).items()}
    works = [work for panel in PANELS for work in times if work.startswith(panel)]
    with pictures(picture, len(works), works) as panels:
        for work, axes in zip(works, panels, strict=True):
            for name, row in times[work].items():
                if name not in NOT_DRAWN:
                    own = {"linewidth": 2.2} if name.startswith(("ours", "Distributed")) else {"linewidth": 1.2}
                    axes.plot(list(row), [value * 1e3 for value in row.values()], marker="o", label=name, **own)
            ranks = sorted({count for row in times[work].values() for count in row})
            axes.set_xscale("log", base=2)
            axes.set_xticks(ranks, list(map(str, ranks)))
            axes.set_yscale("log")
            axes.minorticks_off()
            axes.set_xlabel("ranks")
            axes.set_ylabel("ms")
            axes.legend(fontsize=7)


def gpu_steps(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: step for name, step in data["steps"].items() if step["part"] == "gpu"}


def gpu_block(data: Mapping[str, Any], picture: str) -> str:
    listed = gpu_steps(data)
    if not listed:
        return ""
    call = data["calls"][min(step["call"] for step in listed.values())]
    versions = ", ".join(f"{name} {version}" for name, version in call["versions"].items())
    gpu = call["gpu"] or "no GPU: by a stand-in"
    head = f"{call['when'][:16].replace('T', ' ')}, commit {call['commit']}; {gpu}; {versions}."
    lines = []
    for name, step in listed.items():
        said = "<br>".join(step.get("said") or [step["text"]])
        lines.append([f"`{name}`", step["verdict"], f"{step.get('seconds', 0):.0f} s", said])
    parts = [head, table(["step", "", "took", "result"], lines)]
    if step_times(data):
        parts.append(f"![A step of the transformer]({picture})")
    if data["small"]:
        parts.append("Small sizes: the numbers mean nothing.")
    return "\n\n".join(parts)


def step_times(data: Mapping[str, Any]) -> Mapping[str, Mapping[str, float]]:
    """Returns the times of a step of the transformer, by the way it is made."""
    result = data["steps"].get("transformer", {}).get("result") or {}
    found: Mapping[str, Mapping[str, float]] = result.get("microseconds of a step", {})
    return found


def draw_gpu(data: Mapping[str, Any], picture: Path) -> None:
    times = step_times(data)
    parts = {"backward": "the host's time in backward", "queued": "until it is queued", "whole": "until it is done"}
    with pictures(picture, len(parts), list(parts.values())) as panels:
        for part, axes in zip(parts, panels, strict=True):
            axes.barh(list(times), [each[part] / 1e3 for each in times.values()])
            axes.set_xlabel("ms")


def report_of(file: Path, folder: Path) -> None:
    """Puts results of benchmarks.fifteen_minutes into gpu.md and cores.md of the folder, and draws their pictures."""
    data = json.loads(file.read_text())
    if text := cores_block(data, "cores.svg"):
        rewrite(folder / "cores.md", text)
        draw_cores(data, folder / "cores.svg")
    if text := gpu_block(data, "gpu.svg"):
        rewrite(folder / "gpu.md", text)
    if step_times(data):
        draw_gpu(data, folder / "gpu.svg")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Puts the tables of the last results into benchmarks/README.md.")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--readme", type=Path, default=ROOT / "benchmarks" / "README.md")
    parser.add_argument("--of", type=Path, metavar="FILE", help="the results of benchmarks.fifteen_minutes")
    parser.add_argument("--folder", type=Path, default=ROOT / "benchmarks", help="of gpu.md and cores.md, for --of")
    options = parser.parse_args(arguments)
    if options.of is not None:
        report_of(options.of, options.folder)
        return 0
    rewrite(options.readme, block(options.results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
