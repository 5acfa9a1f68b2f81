"""Checks benchmarks.fifteen_minutes without a GPU: how it runs steps and keeps results, and that its programs run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.job import needs, succeeded

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = ROOT / "tests" / "benchmarks" / "pretended_gpu.py"
TIMEOUT_SECONDS = 300
AGES = 10**6  # a limit that no step reaches


@pytest.fixture
def fifteen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns the module, which keeps its own files in a folder of this test."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks/.."))
    from benchmarks import fifteen_minutes

    (tmp_path / "own").mkdir()
    monkeypatch.setattr(fifteen_minutes, "FOLDER", tmp_path / "own")
    return fifteen_minutes


def step(name: str, code: str, **more: Any) -> Any:
    from benchmarks.fifteen_minutes import Step

    command = [sys.executable, "-c", code]
    return Step(**{"name": name, "bar": "it ends", "command": command, "seconds": AGES, **more})


def run(module: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    environment = {**os.environ, **variables}
    options: dict[str, Any] = {"cwd": ROOT, "env": environment, "timeout": TIMEOUT_SECONDS, "stdin": subprocess.DEVNULL}
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


# --- how steps are run -----------------------------------------------------------------------------------------------


def test_a_call_goes_on_where_the_last_one_ended(
    fifteen: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = tmp_path / "ran"
    steps = [step(name, f"open({str(ran)!r}, 'a').write({name!r})", seconds=100) for name in "abc"]
    monkeypatch.setattr(fifteen, "all_steps", lambda small, ranks: steps)
    folders = [str(tmp_path / "one"), str(tmp_path / "two")]

    def call(*options: str) -> str:
        assert fifteen.main(["--out", *folders, *options]) == 0
        return capsys.readouterr().out.splitlines()[-1]

    assert call("--seconds", "0") == "3 steps are left: run the same command again"
    assert not ran.exists()
    assert call("--only", "a") == "all steps are done"
    assert call() == "all steps are done"
    assert ran.read_text() == "abc"
    shutil.rmtree(folders[0])  # the second folder has come back from a machine that is gone
    call()
    assert ran.read_text() == "abc", "finished steps are not repeated"
    call("--again", "--only", "b")
    assert ran.read_text() == "abcb"
    for folder in folders:
        data = json.loads(Path(folder, "results.json").read_text())
        assert {name: each["verdict"] for name, each in data["steps"].items()} == dict.fromkeys("abc", "PASS")
        assert [each["call"] for each in data["steps"].values()] == [1, 4, 2]
        assert all(each["seconds"] >= 0 and each["machine"]["cores"] and each["versions"] for each in data["calls"])
        assert "=== b" in Path(folder, "log.txt").read_text()
    with pytest.raises(SystemExit, match="small"):
        fifteen.main(["--out", *folders, "--small"])


def test_a_step_that_does_not_fit_is_left_for_the_next_call(fifteen: Any, tmp_path: Path) -> None:
    results = fifteen.Results([tmp_path / "out"], small=False)
    results.data["calls"].append({})
    steps = [step("long", "pass"), step("short", "pass", seconds=100), step("hangs", HANG, seconds=1)]
    assert fifteen.run_all(steps, results, time.monotonic() + 200, small=False) == 1
    assert {name: each["verdict"] for name, each in results.steps.items()} == {"short": "PASS", "hangs": "FAIL"}


HANG = "import threading; threading.Event().wait()"
# The process that it starts keeps the pipe open.
STARTS_ANOTHER = f"""
import os, subprocess, sys
subprocess.Popen([sys.executable, "-c", {HANG!r}], stdout=os.open(sys.argv[1], os.O_WRONLY))
print("hanging", flush=True)
{HANG}
"""


def test_a_step_that_hangs_is_killed_with_all_its_processes_and_noted(fifteen: Any, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    results = fifteen.Results([tmp_path / "out"], small=False)
    results.data["calls"].append({})
    hanging = step("hanging", STARTS_ANOTHER, seconds=2)
    hanging = hanging._replace(command=[*hanging.command, str(pipe)])
    after = step("after", "print('ok')")
    assert fifteen.run_all([hanging, after], results, time.monotonic() + 2 * AGES, small=False) == 0
    assert os.read(reader, 1) == b"", "nobody has the other end, so both processes have ended"
    os.close(reader)
    kept = json.loads((tmp_path / "out" / "results.json").read_text())["steps"]
    assert (kept["hanging"]["verdict"], kept["after"]["verdict"]) == ("FAIL", "PASS")
    assert kept["hanging"]["text"] == "not done after 2 s, and killed"


def test_results_are_saved_after_each_step(fifteen: Any, tmp_path: Path) -> None:
    """The second step finds what the first one has measured. It sees the file as an end of the call would leave it."""
    file = tmp_path / "out" / "results.json"
    writes = "import os; open(os.environ['PERSEUS_BENCHMARK_RESULT'], 'w').write('[7]')"
    reads = f"import json; print(json.load(open({str(file)!r}))['steps']['writes']['result'])"
    results = fifteen.Results([file.parent], small=False)
    results.data["calls"].append({})
    steps = [step("writes", writes), step("reads", reads)]
    assert fifteen.run_all(steps, results, time.monotonic() + 2 * AGES, small=False) == 0
    kept = json.loads(file.read_text())["steps"]
    assert kept["reads"]["output"] == "[7]\n"
    assert kept["reads"]["result"] is None


@pytest.mark.parametrize(
    ("status", "output", "verdict"),
    [
        (0, "ERROR SUMMARY: 0 errors", "PASS"),
        (0, "ERROR SUMMARY: 3 errors", "FAIL"),
        (1, "Error: Device not supported. Please refer to the manual", "NOTE"),
        (1, "Traceback", "FAIL"),
        (None, "", "FAIL"),
    ],
)
def test_a_refused_tool_is_noted_and_is_no_failure(fifteen: Any, status: Any, output: str, verdict: str) -> None:
    memcheck = next(each for each in fifteen.gpu_steps(small=False) if each.name == "memcheck")
    assert fifteen.judge(memcheck, status, output, 9.0, small=False)[0] == verdict
    assert "compute-sanitizer" in fifteen.reason_to_skip(memcheck._replace(tool="no-compute-sanitizer"), {})


def test_two_ranks_are_left_out_after_the_control_has_failed(fifteen: Any) -> None:
    listed = {each.name: each for each in fifteen.gpu_steps(small=False)}
    failed = {"control": {"verdict": "FAIL"}}
    assert fifteen.reason_to_skip(listed["graphs"], failed) == "the control failed"
    assert not fifteen.reason_to_skip(listed["graphs"], {"control": {"verdict": "PASS"}})
    assert not fifteen.reason_to_skip(listed["kernels"], failed)


# --- where ranks are pinned ------------------------------------------------------------------------------------------

# Two nodes of two cores, with two hardware threads each: number → core, node.
TOPOLOGY = {0: (0, 0), 4: (0, 0), 1: (1, 0), 5: (1, 0), 2: (2, 1), 6: (2, 1), 3: (3, 1), 7: (3, 1)}


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        ("spread", [[0], [1], [2], [3], [4], [5]]),
        ("packed", [[0], [4], [1], [5], [2], [6]]),
        ("whole", [[0, 4], [1, 5], [2, 6], [3, 7], [0, 4], [1, 5]]),
        ("nodes", [[0], [2], [1], [3], [4], [6]]),
    ],
)
def test_places_of_ranks(fifteen: Any, placement: str, expected: list[list[int]]) -> None:
    from benchmarks.harness import places
    from perseus_like.launch.binding import Cpu

    topology = [Cpu(number, core, node, node) for number, (core, node) in TOPOLOGY.items()]
    assert places(topology, placement, 6) == expected


# --- reports ---------------------------------------------------------------------------------------------------------


def summary(median: float) -> dict[str, float]:
    return {"median": median, "low": median, "high": median, "first": median, "rounds": 5, "per_round": 1}


def cores_result(ranks: int, rows: dict[str, dict[str, float]]) -> dict[str, Any]:
    contenders = {work: {name: summary(each) for name, each in row.items()} for work, row in rows.items()}
    listed = [{"work": work, "contenders": row} for work, row in contenders.items()]
    machine = {"processor": "P", "cores": 8, "caches": {}, "memory_gib": 1, "system": "S"}
    machine["load_of_the_last_minute"] = 0.5
    about = {"when": "2026-01-02T03:04:05", "commit": "c0ffee", "machine": machine, "versions": {"torch": "2"}}
    return {**about, "quick": False, "placement": "spread", "ranks": ranks, "rows": listed}


def test_the_report_has_the_goals_a_table_and_a_picture(tmp_path: Path) -> None:
    needs("tabulate")
    needs("matplotlib")
    rows = {
        "4 B": {"ours, private": 10e-6},
        "64 MiB": {"ours, arena": 3e-3, "memcpy": 2e-3, "streaming copy": 4e-3},
    }
    steps: dict[str, Any] = {
        f"allreduce_{ranks}": {"part": "cores", "call": 0, "result": cores_result(ranks, rows)} for ranks in (2, 8)
    }
    times = {way: {"backward": 1.0, "queued": 2.0, "whole": 3.0} for way in ("ours", "torch's DDP")}
    steps["transformer"] = {
        **dict.fromkeys(("call", "seconds"), 0),
        "part": "gpu",
        "verdict": "PASS",
        "said": ["100.4 M parameters"],
        "result": {"microseconds of a step": times},
    }
    call = {"when": "2026-01-02T03:04:05", "commit": "c0ffee", "gpu": "NVIDIA H100", "versions": {"torch": "2"}}
    file = tmp_path / "results.json"
    file.write_text(json.dumps({"small": False, "calls": [call], "steps": steps}))
    marks = "before\n<!-- last results: begin -->\nold\n<!-- last results: end -->\nafter\n"
    for name in ("cores.md", "gpu.md"):
        (tmp_path / name).write_text(marks)
    succeeded(run("benchmarks.report", "--of", file, "--folder", tmp_path))
    cores, gpu = ((tmp_path / name).read_text() for name in ("cores.md", "gpu.md"))
    for text in (cores, gpu):
        assert text.startswith("before\n")
        assert text.endswith("\nafter\n")
        assert "2026-01-02 03:04, commit c0ffee" in text
        assert "old" not in text
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in cores.splitlines()]
    assert ["64 MiB in the arena / best plain copy", "≤ 1.2", "1.50", "1.50"] in lines
    assert ["one float / (3 + 2·log₂(ranks / 2)) µs", "≤ 1", "3.33", "1.43"] in lines
    assert ["64 MiB", "memcpy", "2.00 ms", "2.00 ms"] in lines
    assert "NVIDIA H100" in gpu
    assert "100.4 M parameters" in gpu
    assert "ranks" in (tmp_path / "cores.svg").read_text()
    assert "until it is done" in (tmp_path / "gpu.svg").read_text()


# --- the programs ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_cores_are_measured(tmp_path: Path) -> None:
    needs("torch")
    needs("tabulate")
    succeeded(run("benchmarks.fifteen_minutes", "--small", "--only", "allreduce_2", "--ranks", 2, "--out", tmp_path))
    result = json.loads((tmp_path / "results.json").read_text())["steps"]["allreduce_2"]["result"]
    rows = {row["work"]: row["contenders"] for row in result["rows"]}
    assert list(rows) == ["barrier", "4 B", "64 KiB"]
    assert set(rows["4 B"]) >= {"ours, arena", "ours, private", "gloo", "memcpy", "streaming copy"}
    for contenders in rows.values():
        for name, each in contenders.items():
            assert len(each["by_rank"]) == 2, name
            assert all(seconds > 0 for seconds in each["by_rank"]), name
    assert [len(pin["processors"]) for pin in result["pins"]] == [1, 1]
    assert all(pin["processors"][0] in pin["hardware_threads_of_the_core"] for pin in result["pins"])


SANITIZER = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift 2; done
"$@" && echo "RACECHECK SUMMARY: 0 hazards displayed" && echo "ERROR SUMMARY: 0 errors"
"""


@pytest.mark.slow
def test_everything_runs_on_stand_ins(tmp_path: Path) -> None:
    """Runs both parts as on the day, with all placements of this machine, at 2 and 3 ranks."""
    tool = tmp_path / "bin" / "compute-sanitizer"
    tool.parent.mkdir()
    tool.write_text(SANITIZER)
    tool.chmod(0o755)
    variables = {"PERSEUS_BENCHMARK_STAND_IN": str(STAND_IN), "PATH": f"{tool.parent}:{os.environ['PATH']}"}
    out = tmp_path / "out"
    done = run("benchmarks.fifteen_minutes", "--small", "--ranks", 2, 3, "--seconds", 1000, "--out", out, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    steps = json.loads((out / "results.json").read_text())["steps"]
    assert {name for name, each in steps.items() if each["verdict"] != "PASS"} == set()
    assert len(steps) >= 24
    assert {"size_1", "register", "racecheck", "lost_rank", "allreduce_3", "tensors_2", "adam_3"} <= set(steps)


def wheels_for(folder: Path) -> None:
    """Puts the wheels of pip and of this package into the folder. Skips the test if there are none."""
    import ensurepip

    places = [Path(ensurepip.__file__).parent / "_bundled", Path("/usr/share/python-wheels")]
    pips = [wheel for place in places for wheel in place.glob("pip-*.whl")]
    ours = list((ROOT / "build" / "wheel").glob("perseus_like-*.whl"))
    if not pips or not ours:
        pytest.skip("no wheel of pip, or `make package` has not run")
    for wheel in (pips[0], ours[0]):
        shutil.copy(wheel, folder)


@pytest.mark.slow
def test_the_environment_is_made_of_carried_wheels(
    fifteen: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fifteen, "ENVIRONMENT", tmp_path / "environment")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheels_for(wheels)
    python = fifteen.environment(wheels)
    code = "import perseus_like._core, numpy; print(perseus_like.__file__)"
    done = subprocess.run([python, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(tmp_path / "environment"))
    assert (python.parent / "perseusrun").exists()
    assert fifteen.environment(wheels) == python
