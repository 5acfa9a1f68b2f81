"""Fifteen minutes on a machine with a GPU and many cores: runs steps in order, and saves all results after each one.

    python3 -m benchmarks.fifteen_minutes --wheels build/carried     # on a bare machine without network
    python -m benchmarks.fifteen_minutes --part cores --ranks 2 4    # where this package is installed
    python -m benchmarks.fifteen_minutes --list

`make fifteen-minutes` makes the wheels, and prints the commands. A call ends after 9 minutes (`--seconds`), and the
next call goes on: steps that are done are not repeated, unless `--again` is given. `results.json` in each folder of
`--out` has the results, and `log.txt` the output of all steps. `python -m benchmarks.report --of results.json` makes
the tables and pictures of gpu.md and cores.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from . import COMMIT, RESULT, ROOT, SMALL, write_whole

BEGIN = "PERSEUS_BENCHMARK_BEGIN"
ENVIRONMENT = ROOT / ".venv-carried"
FOLDER = ROOT / "build" / "fifteen-minutes"
SECONDS = 540.0  # of a call
GRACE_SECONDS = 5  # from SIGTERM, by which perseusrun ends its ranks, to SIGKILL
KEPT_OUTPUT = 4000  # characters of a step's output in results.json

# --- the steps -------------------------------------------------------------------------------------------------------

# The lines of output that belong into a table of results.
SAID = (
    r"^.*(?:of a copy's bandwidth|hooks add|is queued in|until there|OVERLAP|M parameters"
    r"|overlap with backward|host's time|in torch's time|ERROR after|\d passed|tests collected|SUMMARY:).*$"
)
# compute-sanitizer prints one of these if it cannot run, for example if the machine's system calls are intercepted.
REFUSED = r"Device not supported|Unable to find a supported GPU|not supported on this (system|device)"
COUNTS = (2, 4, 8, 16)  # ranks on the cores


def anything(_: float) -> bool:
    return True


class Step(NamedTuple):
    """A command, a limit in time, and a condition to pass."""

    name: str
    bar: str
    command: Sequence[str]
    says: str = ""  # a pattern that the output must have; its group, if there is one, is a number
    holds: Callable[[float], bool] = anything  # for each number that the output has
    variables: dict[str, str] = {}  # noqa: RUF012
    ranks: int = 1
    seconds: float = 60  # the limit: a step that takes longer is killed
    tool: str = ""  # a program that must be there
    folder: Path = ROOT
    part: str = "gpu"
    fails: bool = False  # it may end with any exit status
    excuse: str = ""  # a pattern of output: the step cannot run on this machine, which is no failure

    def check(self, status: int, output: str) -> str:
        """Returns what is wrong, or an empty text."""
        if status != 0 and not self.fails:
            return f"exit status {status}"
        found = re.findall(self.says, output)
        if not found:
            return f"exit status {status}, and the output has no {self.says!r}"
        missed = [number for number in found if re.compile(self.says).groups and not self.holds(float(number))]
        return f"{missed} where the bar is: {self.bar}" if missed else ""


def part_of_gpu(
    name: str, ranks: int, bar: str, says: str = "", holds: Callable[[float], bool] = anything, **more: Any
) -> Step:
    """Returns the step that runs a part of benchmarks.gpu. Its ranks may share a GPU."""
    # Beside the interpreter: `python -m` in the source tree would find the package without its core.
    command = [str(Path(sys.executable).with_name("perseusrun")), "-np", str(ranks), *more.pop("within", ())]
    command += [sys.executable, "-m", "benchmarks.gpu", "--only", more.pop("only", name)]
    return Step(name, bar, [*command, *(["--apart"] if ranks > 1 else [])], says, holds, ranks=ranks, **more)


def sanitizer(tool: str, says: str, only: str) -> Step:
    # NCCL asks CUDA for kernels that it does not have for this device, and expects the failures.
    options = f"--tool {tool} --error-exitcode 9 --target-processes all --report-api-errors no"
    program = "compute-sanitizer"
    more: dict[str, Any] = {"within": [program, *options.split()], "tool": program, "excuse": REFUSED}
    return part_of_gpu(tool, 1, "no report", says, only=only, seconds=120, **more)


def tests(name: str, which: str, bar: str, ranks: int, small: bool, **variables: str) -> Step:
    """Returns the step that runs one of the tests, outside of the source tree: the installed package is tested.

    If `small` is true, it only collects the tests that the ranks would run.
    """
    pytest = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]
    command, says = [*pytest, f"{ROOT}/tests/gpu/test_on_a_gpu.py::{which}"], r"[1-9]\d* passed"
    if small:
        command, says = [*pytest, "--collect-only", f"{ROOT}/tests/gpu/in_world"], r"[1-9]\d* tests collected"
        variables["PERSEUS_IN_WORLD"] = "1"
    return Step(name, bar, command, says, variables=variables, ranks=ranks, seconds=90, folder=ROOT / "tests")


def gpu_steps(small: bool) -> list[Step]:
    """Returns the steps on a GPU, those that other steps depend on first. If `small` is true, no bar is applied."""
    registered = {"PERSEUS_NCCL_REGISTER": "1"}
    copies, hooks, queued = (
        r"(\d+)% of a copy's bandwidth",
        r"hooks add .*: (-?[\d.]+) of",
        r"1 float is queued in ([\d.]+)",
    )
    host, overlap, error = r"transformer: ours takes ([\d.]+) of", r"OVERLAP ([\d.]+) of", r"ERROR after ([\d.]+) s"
    of_ddp = r"ours in torch's time: ([\d.]+)"
    listed = [
        part_of_gpu("control", 2, "torch's own NCCL works with two ranks"),
        tests("size_1", "test_on_all_ranks[1]", "all tests pass", 1, small),
        tests("size_2", "test_on_all_ranks[2]", "with one communicator", 2, small, PERSEUS_ALLREDUCE_STREAMS="1"),
        tests("by_host", "test_on_all_ranks[2_by_host]", "all tests pass through host memory", 2, small),
        tests("elastic", "test_training_goes_on_after_a_rank_is_lost", "training goes on after kill -9", 2, small),
        part_of_gpu("kernels", 1, "results are right"),
        part_of_gpu("packing", 1, "at least 80 % of a copy's bandwidth", copies, lambda percent: percent >= 80),
        part_of_gpu("hooks", 2, "hooks add no more to backward than torch's DDP", hooks, lambda part: part <= 1),
        part_of_gpu("collectives", 2, "queued in at most 1.25 of NCCL's time", queued, lambda part: part <= 1.25),
        part_of_gpu("overlap", 2, "half of what backward and NCCL allow", overlap, lambda part: part >= 0.5),
        part_of_gpu("graphs", 2, "a captured model has the weights of an eager one", "GRAPHS are right"),
        tests("register", "test_on_all_ranks[2]", "all tests pass with memory registered", 2, small, **registered),
        part_of_gpu("transformer", 2, "no more of the host than DDP", host, lambda part: part <= 1, seconds=100),
        part_of_gpu("resnet50", 1, "not slower than torch's DDP", of_ddp, lambda part: part <= 1),
        sanitizer("racecheck", r"RACECHECK SUMMARY: 0 hazards", "kernels_but_large"),
        sanitizer("memcheck", r"ERROR SUMMARY: 0 errors", "kernels"),
        sanitizer("initcheck", r"ERROR SUMMARY: 0 errors", "kernels_but_large"),
        part_of_gpu("lost_rank", 2, "an error within 5 s", error, lambda seconds: seconds <= 5, fails=True),
    ]
    return [step._replace(holds=anything) for step in listed] if small else listed


def cores_steps(ranks: Sequence[int], small: bool) -> list[Step]:
    """Returns the steps on pinned ranks. Placements that change nothing on this machine are left out."""
    from . import harness

    found = harness.topology()
    counts = sorted(ranks or [count for count in COUNTS if count <= len(found)] or COUNTS[:1], reverse=True)

    def step(name: str, count: int, module: str, placement: str, *options: str) -> Step:
        command = [sys.executable, "-m", f"benchmarks.{module}", "-np", str(count), "--placement", placement]
        command += ["--seconds", "1", "--output", str(FOLDER / "cores"), *options, *(["--quick"] if small else [])]
        name = f"{name}_{count}" if placement == "spread" else f"{name}_{count}_{placement}"
        return Step(name, "measured", command, ranks=count, part="cores")

    work = {"allreduce": "allreduce", "tensors": "many_tensors", "adam": "one_copy_per_host"}
    listed = [step(name, count, module, "spread") for name, module in work.items() for count in counts]
    for count in counts:
        usual = harness.places(found, "spread", count)
        others = [name for name in harness.PLACEMENTS if harness.places(found, name, count) != usual]
        listed += [step("allreduce", count, "allreduce", name, "--ours-only") for name in others]
    return listed


def all_steps(small: bool, ranks: Sequence[int]) -> list[Step]:
    return [*gpu_steps(small), *cores_steps(ranks, small)]


# --- the environment -------------------------------------------------------------------------------------------------


def environment(wheels: Path) -> Path:
    """Returns the Python of an environment with these wheels and with the packages of this Python. Needs no network."""
    python, complete = ENVIRONMENT / "bin" / "python", ENVIRONMENT / "complete"
    if complete.exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", ENVIRONMENT], check=True)
    asked: list[str | Path] = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip())
    # `--system-site-packages` would leave out torch where this Python is that of an environment itself.
    beside = [entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))]
    (packages / "beside.pth").write_text("".join(f"import site; site.addsitedir({entry!r})\n" for entry in beside))
    (pip,) = wheels.glob("pip-*.whl")
    install: list[str | Path] = [
        sys.executable,
        pip / "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    options = ["--no-index", "--no-deps", "--ignore-installed", "--no-compile", "--no-cache-dir"]
    others = [wheel for wheel in wheels.glob("*.whl") if wheel != pip]
    subprocess.run([*install, *options, *others], check=True)
    complete.touch()
    return python


def continue_in(python: Path, wheels: Path, arguments: Sequence[str]) -> None:
    """Replaces this process by one in the environment."""
    os.environ[BEGIN] = str(time.monotonic())
    if (wheels / "COMMIT").exists():
        os.environ[COMMIT] = (wheels / "COMMIT").read_text().strip()
    os.chdir(ROOT)
    os.execv(python, [str(python), "-m", "benchmarks.fifteen_minutes", *arguments])


CALL = """\
{travels:.1f} MB travel: copy the repository to the machine as git knows it, and {wheels} with it (git ignores build/).
The machine needs Python {python}, torch and numpy. There, in the repository:

    python3 -m benchmarks.fifteen_minutes --wheels {wheels} --out build/fifteen-minutes DIR

DIR is a folder that comes back from the machine. The call ends within {minutes:.0f} minutes. The same command goes on
where it ended. For another machine, copy DIR/results.json to build/fifteen-minutes/results.json, and let that folder
travel, too.
Afterwards, in this repository: python -m benchmarks.report --of DIR/results.json
"""
MOST_TRAVELS = 60e6  # bytes


def print_call(wheels: Path) -> int:
    """Prints how to run this on a machine without network. Returns an exit code: 1 if too much would travel."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    tree = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    files = [ROOT / name for name in tree if name] + list(wheels.iterdir())
    travels = sum(file.stat().st_size for file in files if file.is_file())
    python = next(wheels.glob("perseus_like-*.whl")).name.split("-")[2].removeprefix("cp3")
    print(CALL.format(travels=travels / 1e6, wheels=wheels, python=f"3.{python}", minutes=SECONDS / 60 + 1))
    if travels > MOST_TRAVELS:
        print(f"{travels / 1e6:.1f} MB are more than the {MOST_TRAVELS / 1e6:.0f} MB that may travel", file=sys.stderr)
    return int(travels > MOST_TRAVELS)


# --- results ---------------------------------------------------------------------------------------------------------


class Results:
    """The results of all calls: results.json and log.txt in each of the folders."""

    def __init__(self, folders: Sequence[Path], small: bool) -> None:
        self._folders = folders
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        found = (folder / "results.json" for folder in folders)
        earlier = next((file for file in found if file.exists()), None)
        self.data: dict[str, Any] = json.loads(earlier.read_text()) if earlier else {}
        if self.data.setdefault("small", small) != small:
            raise SystemExit(f"{earlier} has results {'of' if not small else 'without'} --small: choose another --out")
        self.data.setdefault("calls", [])
        self.steps: dict[str, dict[str, Any]] = self.data.setdefault("steps", {})

    def save(self) -> None:
        text = json.dumps(self.data, indent=1, ensure_ascii=False) + "\n"
        for folder in self._folders:
            write_whole(folder / "results.json", text)

    def log(self, text: str) -> None:
        for folder in self._folders:
            with (folder / "log.txt").open("a") as file:
                file.write(text)

    def keep(self, step: Step, verdict: str, text: str, more: dict[str, Any]) -> None:
        call = len(self.data["calls"]) - 1
        self.steps[step.name] = {"part": step.part, "call": call, "verdict": verdict, "text": text, **more}
        self.save()
        took = f" ({more['seconds']:.0f} s)" if more else ""
        print(f"{verdict:5} {step.name}: {text}{took}", flush=True)


def where() -> dict[str, Any]:
    """Returns the machine, its GPU, the commit and the versions."""
    from . import harness

    gpu = ""
    if shutil.which("nvidia-smi"):
        asked = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        gpu = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return {**harness.where(), "gpu": gpu}


# --- the run ---------------------------------------------------------------------------------------------------------


def run(step: Step, seconds: float, small: bool) -> tuple[int | None, str, Any]:
    """Runs a step for at most so long. Returns its exit status (None: it was killed), its output and its result."""
    result = FOLDER / "result.json"
    result.unlink(missing_ok=True)
    variables = {**os.environ, **step.variables, RESULT: str(result), **({SMALL: "1"} if small else {})}
    log = FOLDER / "output.txt"
    with log.open("wb") as output:
        options: dict[str, Any] = {"cwd": step.folder, "env": variables, "stdin": subprocess.DEVNULL, "stdout": output}
        process = subprocess.Popen(step.command, stderr=subprocess.STDOUT, start_new_session=True, **options)
        status: int | None = None
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            end_group(process)
    text = log.read_text(errors="replace")
    return status, text, json.loads(result.read_text()) if result.exists() else None


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends all processes that the step has left."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, signum)
        except ProcessLookupError:
            break
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def judge(step: Step, status: int | None, output: str, seconds: float, small: bool) -> tuple[str, str]:
    """Returns the verdict on a step, and a text."""
    if status is None:
        return "FAIL", f"not done after {seconds:.0f} s, and killed"
    trouble = step.check(status, output)
    if not trouble:
        return "PASS", "it runs" if small else step.bar
    if step.excuse and (said := re.search(f".*({step.excuse}).*", output)):
        return "NOTE", f"cannot run on this machine: {said[0].strip()[:200]}"
    return "FAIL", trouble


def reason_to_skip(step: Step, steps: dict[str, dict[str, Any]]) -> str:
    if step.tool and shutil.which(step.tool) is None:
        return f"there is no {step.tool}"
    if step.part == "gpu" and step.ranks > 1 and steps.get("control", {}).get("verdict") == "FAIL":
        return "the control failed"
    return ""


def run_all(listed: Sequence[Step], results: Results, deadline: float, small: bool) -> int:
    """Runs the steps until the deadline. Returns how many are left."""
    left = 0
    for step in listed:
        if reason := reason_to_skip(step, results.steps):
            results.keep(step, "SKIP", reason, {})
            continue
        seconds = min(float(step.seconds), deadline - time.monotonic())
        # A limit is about twice the expected time.
        if seconds < step.seconds / 2:
            left += 1
            continue
        begin = time.monotonic()
        status, output, result = run(step, seconds, small)
        took = time.monotonic() - begin
        results.log(f"=== {step.name}\n$ {' '.join(step.command)}\n{output}\n# exit status {status}, {took:.1f} s\n\n")
        if status is None and seconds < step.seconds:
            left += 1
            print(f"LATER {step.name}: the time of this call was over", flush=True)
            continue
        verdict, text = judge(step, status, output, seconds, small)
        said = list(dict.fromkeys(re.findall(SAID, output, re.MULTILINE)))
        kept = {"seconds": round(took, 2), "said": said, "output": output[-KEPT_OUTPUT:], "result": result}
        results.keep(step, verdict, text, kept)
    return left


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("gpu", "cores"), help="the steps of this part alone")
    parser.add_argument("--only", default="", help="the names of steps, separated by commas")
    parser.add_argument("--ranks", type=int, nargs="+", default=[], help="of the part cores (default: 2, 4, 8, 16)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="when a call ends (default %(default)s)")
    parser.add_argument("--patience", type=float, default=1, help="multiply all limits, on a slow or busy machine")
    parser.add_argument("--out", type=Path, nargs="+", default=[FOLDER], help="folders of the results")
    parser.add_argument("--again", action="store_true", help="repeat steps that are done")
    parser.add_argument("--small", action="store_true", help="tiny sizes and no bars: does it run at all?")
    parser.add_argument("--wheels", type=Path, help="first make an environment of the wheels in this folder")
    parser.add_argument("--call", type=Path, metavar="WHEELS", help="print the commands for these wheels")
    parser.add_argument("--list", action="store_true", help="print the steps, their limits and commands")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    chosen = parse(arguments)
    if chosen.call is not None:
        return print_call(chosen.call)
    if chosen.wheels is not None and Path(sys.prefix) != ENVIRONMENT:
        continue_in(environment(chosen.wheels), chosen.wheels, arguments)
    begin = float(os.environ.get(BEGIN) or time.monotonic())
    FOLDER.mkdir(parents=True, exist_ok=True)
    names = [name for name in chosen.only.split(",") if name]
    listed = [step for step in all_steps(chosen.small, chosen.ranks) if chosen.part in (None, step.part)]
    if unknown := sorted(set(names) - {step.name for step in listed}):
        raise SystemExit(f"--only: no such step: {', '.join(unknown)}; see --list")
    listed = [step for step in listed if not names or step.name in names]
    listed = [step._replace(seconds=step.seconds * chosen.patience) for step in listed]
    if chosen.list:
        for step in listed:
            print(f"{step.name} ({step.seconds} s): {step.bar}\n    {' '.join(step.command)}")
        return 0
    results = Results(chosen.out, chosen.small)
    results.data["calls"].append(where())
    results.save()
    due = [step for step in listed if chosen.again or step.name not in results.steps]
    left = run_all(due, results, begin + chosen.seconds, chosen.small)
    results.data["calls"][-1]["seconds"] = round(time.monotonic() - begin, 1)
    results.save()
    print(f"{left} steps are left: run the same command again" if left else "all steps are done", flush=True)
    return int(any(results.steps.get(step.name, {}).get("verdict") == "FAIL" for step in due))


if __name__ == "__main__":
    sys.exit(main())
