"""Checks that each benchmark runs with tiny sizes and writes results that can be read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.job import needs, run_to_end

ROOT = Path(__file__).resolve().parents[2]

needs("torch")
needs("tabulate")
needs("tensorflow")


def run(module: str, *arguments: object, ranks: int = 0, **variables: str) -> str:
    """Runs a benchmark from the repository root, as a user does, and returns its output.

    The benchmark must measure the installed package.
    """
    launcher = [sys.executable, "-m", "perseus_like.launch", "-np", str(ranks)] if ranks else []
    ran = run_to_end(
        [*launcher, sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)], ROOT, joined=True, **variables
    )
    assert ran.returncode == 0, ran.stdout[-6000:]
    return ran.stdout


def result_of(folder: Path, name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    assert data["quick"]
    assert data["machine"]["cores"] >= 1
    assert data["versions"]["torch"]
    return data


CONTENDERS = {
    "allreduce": {"ours, arena", "ours, private", "gloo", "memcpy", "streaming copy"},
    "many_tensors": {"ours", "ours, grouped", "ours, arena", "gloo", "gloo, DDP's buckets"},
    "training_step": {"one process alone", "each by itself", "ours", "our DDP", "DDP over perseus", "DDP over gloo"},
    "tensorflow_step": {"torch adapter", "as a tape reduces them", "an allreduce each", "TensorFlow copies them"},
    "tensorflow_eager": {
        *("allreduce", "allreduce, named", "grouped_allreduce of 5", "grouped_allgather of 5", "broadcast"),
        *("broadcast_ of a variable", "NumPy adapter", "TensorFlow adds 1"),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("module", CONTENDERS)
def test_contenders_are_measured(module: str, tmp_path: Path) -> None:
    options = {"allreduce": ["--no-mpi"], "tensorflow_eager": ["--eager"]}.get(module, [])
    program = module.replace("_eager", "_step")
    output = run(program, "--quick", "--output", tmp_path, *options)
    data = result_of(tmp_path, module)
    assert data["ranks"] == 2
    assert data["rows"]
    for row in data["rows"]:
        assert set(row["contenders"]) >= CONTENDERS[module]
        for summary in row["contenders"].values():
            assert 0 < summary["low"] <= summary["median"] <= summary["high"]
        assert row["work"] in output


@pytest.mark.slow
def test_idle_measures_time_and_memory(tmp_path: Path) -> None:
    run("idle", "--quick", "--output", tmp_path)
    assert all(isinstance(value, float) for value in result_of(tmp_path, "idle")["facts"].values())


@pytest.mark.slow
def test_shared_data_measures_time_and_memory(tmp_path: Path) -> None:
    run("one_copy_per_host", "--data", "--quick", "--output", tmp_path)
    result = result_of(tmp_path, "shared_data")
    assert len(result["facts"]) == len(result["rows"][0]["contenders"]) == 4
    memory = {name: value for name, value in result["facts"].items() if "shared" in name}
    assert all(0.009 < value < 0.018 for value in memory.values()), "two ranks have 10 MB once"


def require_fused_optimizers() -> None:
    """Skips the test if torch has no fused optimizers for the CPU, which are a contender."""
    import torch

    try:
        torch.optim.Adam([torch.zeros(1, requires_grad=True)], fused=True)
    except RuntimeError as error:
        pytest.skip(f"torch {torch.__version__}: {error}")


@pytest.mark.slow
def test_optimizer_steps_are_measured(tmp_path: Path) -> None:
    require_fused_optimizers()
    run("one_copy_per_host", "--kernels", "--quick", "-np", 2, "--output", tmp_path)
    rows = result_of(tmp_path, "optimizer_step")["rows"]
    assert [row["work"] for row in rows] == ["adam", "adamw", "sgd"]
    assert all({"ours", "torch, fused"} < set(row["contenders"]) for row in rows)


@pytest.mark.slow
def test_the_sharded_optimizer_is_measured(tmp_path: Path) -> None:
    require_fused_optimizers()
    run("one_copy_per_host", "--quick", "--output", tmp_path)
    rows = result_of(tmp_path, "sharded_optimizer")["rows"]
    assert [len(row["contenders"]) for row in rows] == [5, 2]


@pytest.mark.slow
def test_one_copy_per_host_is_measured(tmp_path: Path) -> None:
    require_fused_optimizers()
    picture = tmp_path / "picture.svg"
    table = run("one_copy_per_host", "--quick", "--counts", 1, 2, "--output", tmp_path, "--picture", picture)
    assert [line.split(" | ")[0] for line in table.splitlines()[-2:]] == ["| 1", "| 2"]
    assert "ZeroRedundancyOptimizer" in picture.read_text()


@pytest.mark.slow
def test_other_numbers_of_ranks_have_their_own_file(tmp_path: Path) -> None:
    run("allreduce", "--quick", "--ours-only", "-np", 3, "--output", tmp_path)
    assert result_of(tmp_path, "allreduce-3")["ranks"] == 3


@pytest.mark.slow
def test_report_rewrites_only_the_marked_block(tmp_path: Path) -> None:
    run("allreduce", "--quick", "--ours-only", "--output", tmp_path)
    readme = tmp_path / "README.md"
    for _ in range(2):
        if not readme.exists():
            text = (ROOT / "benchmarks" / "README.md").read_text()
            before, after = text.partition("<!-- last results: begin -->")[0], text.partition("end -->")[2]
            readme.write_text(text)
        run("report", "--results", tmp_path, "--readme", readme)
        written = readme.read_text()
        assert written.startswith(before)
        assert written.endswith(after)
        assert written.count("Allreduce of one float32 tensor") == 1


@pytest.mark.slow
def test_torch_distributed_is_compared_with_gloo() -> None:
    output = run("group_calls", "--here", "--quick", ranks=2)
    for work in ("one float", "64 MB"):
        assert re.search(rf"{work} +perseus .* of gloo", output), output


@pytest.mark.slow
def test_starts_are_measured() -> None:
    output = run("start", "--rounds", 1)
    for what in ("import, after torch", r"hvd\.init\(\), 2 ranks", "perseusrun -np 2 true", "torchrun"):
        assert re.search(rf"^\| {what} \| \d+ ms \|", output, re.MULTILINE), output


RECORDED = """
import json, sys
from pathlib import Path
from benchmarks import report

data = json.loads(sys.argv[1])
report.plot(data, Path(sys.argv[2]))
print(report.as_text(data))
"""


@pytest.mark.parametrize(("load", "quick"), [(2.3, False), (7.25, False), (2.3, True)])
def test_tables_and_pictures_have_the_same_warnings(load: float, quick: bool, tmp_path: Path) -> None:
    """Both warn if the machine's load is larger than the load of the ranks, and if the run is a quick one."""
    row = {"work": "4 B", "bytes": 4, "contenders": {"ours": {"median": 1e-6, "low": 9e-7, "high": 2e-6}}}
    lists: dict[str, Any] = {"ours": ["ours"], "rows": [row], "facts": {}, "missing": {}, "bars": []}
    about = {"title": "T", "ranks": 2, "transport": "shm", "quick": quick, "commit": "c"}
    data = {**lists, **about, "machine": {"processor": "P", "cores": 2, "load_of_the_last_minute": load}}
    command = [sys.executable, "-c", RECORDED, json.dumps(data), str(tmp_path / "picture")]
    table = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    words = re.sub(r"<[^>]*>", " ", (tmp_path / "picture.svg").read_text())
    picture = re.sub(r"\s+", " ", words)
    assert "size of the tensor" in picture
    assert "time in µs" in picture
    for text, is_due in (("Quick run", quick), ("busy with other work: a load of 7.25 for 2 ranks", load > 2.5)):
        assert (text in table, text in picture) == (is_due, is_due)
