"""The steps that benchmarks.fifteen_minutes runs: each has a command, a limit in time, and a condition to pass."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
# Beside the interpreter: `python -m` in the source tree would find the package without its core.
RUN = (str(Path(sys.executable).with_name("perseusrun")), "-np")
PYTEST = ("-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider")
FOLDER = ROOT / "build" / "fifteen-minutes"

Check = Callable[[int, str], str]  # exit status and output → what is wrong, or an empty text


class Step(NamedTuple):
    name: str
    bar: str
    command: Sequence[str]
    check: Check
    variables: dict[str, str] = {}  # noqa: RUF012
    ranks: int = 1
    seconds: float = 60  # the limit: a step that takes longer is killed
    tool: str = ""  # a program that must be there
    folder: Path = ROOT
    part: str = "gpu"
    excuse: str = ""  # a pattern of output: the step cannot run on this machine, which is no failure


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


# The lines of output that belong into a table of results.
SAID = (
    r"^.*(?:of a copy's bandwidth|hooks add|is queued in|until there|OVERLAP|captured model|all_reduce of \d"
    r"|at most \d+ MiB|M parameters|overlap with backward|host's time|ERROR after|\d passed|tests collected"
    r"|SUMMARY:).*$"
)
# compute-sanitizer prints one of these if it cannot run, for example if the machine's system calls are intercepted.
REFUSED = r"Device not supported|Unable to find a supported GPU|not supported on this (system|device)"


def tests(name: str, which: str, bar: str, variables: dict[str, str], ranks: int, small: bool) -> Step:
    """Returns the step that runs one of the tests, outside of the source tree: the installed package is tested.

    If `small` is true, it only collects the tests that the ranks would run.
    """
    command = [sys.executable, *PYTEST, f"{ROOT}/tests/gpu/test_on_a_gpu.py::{which}"]
    if small:
        command = [sys.executable, *PYTEST, "--collect-only", f"{ROOT}/tests/gpu/in_world"]
        variables = {**variables, "PERSEUS_IN_WORLD": "1"}
    check = says(r"[1-9]\d* tests collected") if small else all_tests_pass
    return Step(name, bar, command, check, variables, ranks, seconds=90, folder=ROOT / "tests")


def gpu_steps(small: bool) -> list[Step]:
    """Returns the steps on a GPU, those that other steps depend on first. If `small` is true, no bar is applied."""
    note, trace = str(FOLDER / "killed-at"), str(FOLDER / "overlap.json")
    one, registered = {"PERSEUS_ALLREDUCE_STREAMS": "1"}, {"PERSEUS_NCCL_REGISTER": "1"}
    expandable = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", **registered}

    def measured(pattern: str, holds: Callable[[float], bool], bar: str) -> Check:
        return numbers(pattern, (lambda _: True) if small else holds, bar)

    def sanitizer(tool: str, pattern: str, *arguments: str) -> Step:
        check = both(succeeds, says(pattern))
        command = sanitized(tool, *arguments)
        return Step(tool, "no report", command, check, seconds=120, tool="compute-sanitizer", excuse=REFUSED)

    return [
        Step(
            "control",
            "torch's own NCCL works with two ranks",
            program(2, "first_hour.control"),
            succeeds,
            ranks=2,
        ),
        tests("size_1", "test_on_all_ranks[1]", "all tests pass", {}, 1, small),
        tests("size_2", "test_on_all_ranks[2]", "all tests pass with one communicator", one, 2, small),
        tests("by_host", "test_on_all_ranks[2_by_host]", "all tests pass through host memory", {}, 2, small),
        tests("elastic", "test_training_goes_on_after_a_rank_is_lost", "training goes on after kill -9", {}, 2, small),
        Step(
            "kernels",
            "results are right",
            program(1, "first_hour.kernels"),
            succeeds,
        ),
        Step(
            "packing",
            "at least 80 % of a copy's bandwidth",
            program(1, "gpu", "--only", "packing"),
            measured(r"(\d+)% of a copy's bandwidth", lambda percent: percent >= 80, "80 %"),
        ),
        Step(
            "hooks",
            "hooks add no more to the backward pass of 160 parameters than torch's DDP",
            program(2, "gpu", "--only", "hooks", "--apart"),
            measured(r"hooks add .*: (-?[\d.]+) of", lambda part: part <= 1, "1"),
            ranks=2,
        ),
        Step(
            "collectives",
            "an allreduce of one float is queued in at most 1.25 of the time of torch's own NCCL",
            program(2, "gpu", "--only", "collectives", "--apart"),
            measured(r"1 float is queued in ([\d.]+) of", lambda part: part <= 1.25, "1.25"),
            ranks=2,
        ),
        Step(
            "overlap",
            "backward and NCCL run at once during half of the time in which they can",
            program(2, "first_hour.overlap", "--trace", trace),
            measured(r"OVERLAP ([\d.]+) of", lambda part: part >= 0.5, "0.5"),
            ranks=2,
        ),
        Step(
            "graphs",
            "a captured model is trained through DistributedOptimizer and the backend; a captured verb is refused",
            program(2, "first_hour.checks", "graphs"),
            says("GRAPHS are right"),
            ranks=2,
        ),
        Step(
            "floats",
            "verbs of bfloat16 and 8-bit floats are right",
            program(2, "first_hour.checks", "floats"),
            says("FLOATS are right"),
            ranks=2,
        ),
        tests("register", "test_on_all_ranks[2]", "all tests pass with memory registered", registered, 2, small),
        Step(
            "allocations",
            "500 allocations and frees beside expandable segments leave no wrong result",
            program(2, "first_hour.checks", "allocations"),
            says("ALLOCATIONS are right"),
            expandable,
            ranks=2,
        ),
        Step(
            "transformer",
            "ours takes no more of the host than torch's DDP for a step of a transformer",
            program(2, "gpu", "--only", "transformer", "--apart"),
            measured(r"transformer: ours takes ([\d.]+) of the host's time", lambda part: part <= 1, "1"),
            ranks=2,
            seconds=100,
        ),
        sanitizer("racecheck", r"RACECHECK SUMMARY: 0 hazards", "--no-large"),
        sanitizer("memcheck", r"ERROR SUMMARY: 0 errors"),
        sanitizer("initcheck", r"ERROR SUMMARY: 0 errors", "--no-large"),
        Step(
            "lost_rank",
            "kill -9 with four buckets in flight gives an error within 5 s",
            program(2, "first_hour.lost_rank", note),
            measured(r"ERROR after ([\d.]+) s", lambda seconds: seconds <= 5, "5 s"),
            ranks=2,
        ),
    ]
