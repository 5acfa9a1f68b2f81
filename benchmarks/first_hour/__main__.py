"""The first hour on a GPU: runs steps in order, and prints PASS or FAIL for each.

    python -m benchmarks.first_hour                    # all steps
    python -m benchmarks.first_hour --list
    python -m benchmarks.first_hour --only control,size_1

Needs torch for CUDA, this library with its tests, pytest and pytest-timeout, and no network. The output of each step is
kept in build/first-hour. After the control has failed, the steps with two ranks are left out.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
# Beside the interpreter: `python -m` in the source tree would find the package without its core.
RUN = (str(Path(sys.executable).with_name("perseusrun")), "-np")
PYTEST = ("-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider")
FOLDER = ROOT / "build" / "first-hour"

Check = Callable[[int, str], str]  # exit status and output → what is wrong, or an empty text


class Step(NamedTuple):
    name: str
    bar: str
    command: Sequence[str]
    check: Check
    variables: dict[str, str] = {}  # noqa: RUF012
    ranks: int = 1
    seconds: int = 300
    tool: str = ""  # a program that must be there
    folder: Path = ROOT


def succeeds(status: int, output: str) -> str:
    return "" if status == 0 else f"exit status {status}"


def says(pattern: str) -> Check:
    def check(status: int, output: str) -> str:
        if status != 0:
            return f"exit status {status}"
        return "" if re.search(pattern, output) else f"the output has no {pattern!r}"

    return check


def all_tests_pass(status: int, output: str) -> str:
    if status != 0:
        return f"exit status {status}"
    return "" if re.search(r"[1-9]\d* passed", output) else "no test has run"


def numbers(pattern: str, holds: Callable[[float], bool], bar: str) -> Check:
    """Checks every number that the pattern's group finds in the output."""

    def check(status: int, output: str) -> str:
        found = [float(number) for number in re.findall(pattern, output)]
        if not found:
            return f"exit status {status}, and no number {pattern!r} in the output"
        missed = [number for number in found if not holds(number)]
        return f"{missed} where the bar is {bar}" if missed else ""

    return check


def both(*checks: Check) -> Check:
    return lambda status, output: next((text for check in checks if (text := check(status, output))), "")


def program(ranks: int, name: str, *arguments: str, within: Sequence[str] = ()) -> list[str]:
    """Returns the command that runs one of the benchmarks on so many ranks."""
    return [*RUN, str(ranks), *within, sys.executable, "-m", f"benchmarks.{name}", *arguments]


def sanitized(tool: str, *arguments: str) -> list[str]:
    # NCCL asks CUDA for kernels that it does not have for this device, and expects the failures.
    options = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", "--target-processes", "all"]
    options += ["--report-api-errors", "no"]
    return program(1, "first_hour.kernels", *arguments, within=options)


def tests(name: str, which: str, bar: str, variables: dict[str, str], ranks: int) -> Step:
    """Returns the step that runs one of the tests, outside of the source tree: the installed package is tested."""
    command = [sys.executable, *PYTEST, f"{ROOT}/tests/gpu/test_on_a_gpu.py::{which}"]
    return Step(name, bar, command, all_tests_pass, variables, ranks, seconds=400, folder=ROOT / "tests")


def steps() -> list[Step]:
    note, trace = str(FOLDER / "killed-at"), str(FOLDER / "overlap.json")
    one = {"PERSEUS_ALLREDUCE_STREAMS": "1"}
    no_reports = says("ERROR SUMMARY: 0 errors")
    return [
        Step(
            "control",
            "torch's own NCCL works with two ranks",
            program(2, "first_hour.control"),
            succeeds,
            ranks=2,
        ),
        tests("size_1", "test_on_all_ranks[1]", "all tests pass", {}, 1),
        tests("size_2", "test_on_all_ranks[2]", "all tests pass with one communicator", one, 2),
        tests("by_host", "test_on_all_ranks[2_by_host]", "all tests pass through host memory", {}, 2),
        tests("elastic", "test_training_goes_on_after_a_rank_is_lost", "training goes on after kill -9", {}, 2),
        Step(
            "kernels",
            "results are right",
            program(1, "first_hour.kernels"),
            succeeds,
        ),
        Step(
            "memcheck",
            "no report",
            sanitized("memcheck"),
            both(succeeds, no_reports),
            seconds=580,
            tool="compute-sanitizer",
        ),
        Step(
            "initcheck",
            "no report",
            sanitized("initcheck", "--no-large"),
            both(succeeds, no_reports),
            seconds=580,
            tool="compute-sanitizer",
        ),
        Step(
            "packing",
            "at least 80 % of a copy's bandwidth",
            program(1, "gpu", "--only", "packing"),
            numbers(r"(\d+)% of a copy's bandwidth", lambda percent: percent >= 80, "80 %"),
        ),
        Step(
            "hooks",
            "hooks add no more to the backward pass of 160 parameters than torch's DDP",
            program(2, "gpu", "--only", "hooks", "--apart"),
            numbers(r"hooks add .*: ([\d.]+) of", lambda part: part <= 1, "1"),
            ranks=2,
        ),
        Step(
            "collectives",
            "an allreduce of one float is queued in at most 1.25 of the time of torch's own NCCL",
            program(2, "gpu", "--only", "collectives", "--apart"),
            numbers(r"1 float is queued in ([\d.]+) of", lambda part: part <= 1.25, "1.25"),
            ranks=2,
        ),
        Step(
            "lost_rank",
            "kill -9 with four buckets in flight gives an error within 5 s",
            program(2, "first_hour.lost_rank", note),
            numbers(r"ERROR after ([\d.]+) s", lambda seconds: seconds <= 5, "5 s"),
            ranks=2,
            seconds=120,
        ),
        Step(
            "overlap",
            "backward and NCCL run at once during half of the time in which they can",
            program(2, "first_hour.overlap", "--trace", trace),
            numbers(r"OVERLAP ([\d.]+) of", lambda part: part >= 0.5, "0.5"),
            ranks=2,
        ),
    ]


def run(step: Step) -> str:
    """Runs a step, keeps its output, and returns what is wrong."""
    begin = time.monotonic()
    with (FOLDER / f"{step.name}.log").open("w+") as log:
        log.write(f"$ {' '.join(step.command)}\n")
        log.flush()
        options: dict[str, Any] = {"cwd": step.folder, "env": {**os.environ, **step.variables}, "stdout": log}
        try:
            status = subprocess.run(step.command, stderr=subprocess.STDOUT, timeout=step.seconds, **options).returncode
        except subprocess.TimeoutExpired:
            return f"not done after {step.seconds} s"
        log.write(f"\n# exit status {status} after {time.monotonic() - begin:.1f} s\n")
        log.seek(0)
        return step.check(status, log.read())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the steps, their bars and commands")
    parser.add_argument("--only", default="", help="the names of steps, separated by commas")
    chosen = parser.parse_args()
    names = [name for name in chosen.only.split(",") if name]
    listed = [step for step in steps() if not names or step.name in names]
    if chosen.list:
        for step in listed:
            print(f"{step.name}: {step.bar}\n    {' '.join(step.command)}")
        return 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    failed: list[str] = []
    for step in listed:
        if step.tool and shutil.which(step.tool) is None:
            print(f"SKIP  {step.name}: there is no {step.tool}", flush=True)
        elif "control" in failed and step.ranks > 1:
            print(f"SKIP  {step.name}: the control failed", flush=True)
        else:
            trouble = run(step)
            if trouble:
                failed.append(step.name)
            print(f"{'FAIL' if trouble else 'PASS'}  {step.name}: {trouble or step.bar}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
