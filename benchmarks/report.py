"""Puts the tables of the last results into README.md: `python -m benchmarks.report`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import ROOT
from .record import Bar, as_text

ORDER = ("allreduce", "many_tensors", "training_step", "tensorflow_step", "tensorflow_eager", "idle")
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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Puts the tables of the last results into benchmarks/README.md.")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--readme", type=Path, default=ROOT / "benchmarks" / "README.md")
    options = parser.parse_args(arguments)
    rewrite(options.readme, block(options.results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
