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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import COMMIT, RESULT, ROOT, SMALL, write_whole
from .first_hour.steps import FOLDER, SAID, Step, gpu_steps

BEGIN = "PERSEUS_BENCHMARK_BEGIN"
ENVIRONMENT = ROOT / ".venv-carried"
SECONDS = 540.0  # of a call
GRACE_SECONDS = 5  # from SIGTERM, by which perseusrun ends its ranks, to SIGKILL
KEPT_OUTPUT = 4000  # characters of a step's output in results.json


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
    install: list[str | Path] = [sys.executable, pip / "pip", "--python", python, "install", "--quiet"]
    options = [
        "--disable-pip-version-check",
        "--no-index",
        "--no-deps",
        "--ignore-installed",
        "--no-compile",
        "--no-cache-dir",
    ]
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
    ours = next(wheels.glob("perseus_like-*.whl")).name.split("-")
    python = ours[2].removeprefix("cp3")
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
        self.data.setdefault("steps", {})

    @property
    def steps(self) -> dict[str, dict[str, Any]]:
        steps: dict[str, dict[str, Any]] = self.data["steps"]
        return steps

    def save(self) -> None:
        text = json.dumps(self.data, indent=1, ensure_ascii=False) + "\n"
        for folder in self._folders:
            write_whole(folder / "results.json", text)

    def log(self, text: str) -> None:
        for folder in self._folders:
            with (folder / "log.txt").open("a") as file:
                file.write(text)


def where() -> dict[str, Any]:
    """Returns the machine, its GPU, the commit and the versions."""
    from . import record

    gpu = ""
    if shutil.which("nvidia-smi"):
        asked = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        gpu = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "commit": record.commit(),
        "gpu": gpu,
        "machine": record.machine(),
        "versions": record.versions(),
    }


# --- a step ----------------------------------------------------------------------------------------------------------


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


# --- all steps -------------------------------------------------------------------------------------------------------


def run_all(listed: Sequence[Step], results: Results, deadline: float, small: bool) -> int:
    """Runs the steps until the deadline. Returns how many are left."""
    left = 0
    for step in listed:
        if reason := reason_to_skip(step, results.steps):
            keep(results, step, "SKIP", reason, {})
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
        keep(results, step, verdict, text, kept)
    return left


def keep(results: Results, step: Step, verdict: str, text: str, more: dict[str, Any]) -> None:
    call = len(results.data["calls"]) - 1
    results.steps[step.name] = {"part": step.part, "call": call, "verdict": verdict, "text": text, **more}
    results.save()
    took = f" ({more['seconds']:.0f} s)" if more else ""
    print(f"{verdict:5} {step.name}: {text}{took}", flush=True)


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


def all_steps(small: bool, ranks: Sequence[int]) -> list[Step]:
    from . import cores

    return [*gpu_steps(small), *cores.steps(ranks, small)]


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
    again = set() if chosen.again else set(results.steps)
    due = [step for step in listed if step.name not in again]
    left = run_all(due, results, begin + chosen.seconds, chosen.small)
    results.data["calls"][-1]["seconds"] = round(time.monotonic() - begin, 1)
    results.save()
    print(f"{left} steps are left: run the same command again" if left else "all steps are done", flush=True)
    failed = [step.name for step in due if results.steps.get(step.name, {}).get("verdict") == "FAIL"]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
