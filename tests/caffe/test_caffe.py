"""Tests of perseus_like.caffe with a stand-in that has pycaffe's interface."""

from __future__ import annotations

import ast
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.job import run_to_end, succeeded

STAND_IN = Path(__file__).parent / "stand_in"
SOLVER = """
base_lr: 0.05  # max_iter: 3
momentum: 0.9
iter_size: 2
max_iter: {max_iter}
snapshot: 10
snapshot_prefix: "{prefix}"
batch: {batch}
"""


def write_solver(path: Path, max_iter: int = 20, batch: int = 4, more: str = "", prefix: str = "run") -> Path:
    path.write_text(SOLVER.format(max_iter=max_iter, batch=batch, prefix=prefix) + more)
    return path


def start(ranks: int, *program: object, caffe: bool = True) -> subprocess.CompletedProcess[str]:
    search = [*([str(STAND_IN)] if caffe else []), *filter(None, [os.environ.get("PYTHONPATH")])]
    return run_to_end(
        [sys.executable, "-m", "perseus_like.launch", "--no-prefix", "-np", str(ranks), sys.executable]
        + [str(word) for word in program],
        PYTHONPATH=os.pathsep.join(search),
    )


def train(ranks: int, *arguments: object) -> None:
    succeeded(start(ranks, "-m", "perseus_like.caffe", "train", *arguments))


def weights(path: str) -> list[Any]:
    return [value for _, values in sorted(pickle.loads(Path(path).read_bytes())["net"].items()) for value in values]


def assert_close(one: list[Any], other: list[Any]) -> None:
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_train_as_one_process_with_the_whole_batch(ranks: int, tmp_path: Path) -> None:
    train(1, "--solver", write_solver(tmp_path / "one.prototxt", batch=16, prefix="one"))
    train(ranks, "--solver", write_solver(tmp_path / "many.prototxt", batch=16 // ranks, prefix="many"))
    assert_close(weights("many_iter_20.solverstate"), weights("one_iter_20.solverstate"))


def test_training_resumes_from_a_snapshot(tmp_path: Path) -> None:
    solver = write_solver(tmp_path / "solver.prototxt", max_iter=10)
    train(2, "--solver", solver)
    train(2, "-solver", solver, "-snapshot", "run_iter_10.solverstate", "-iterations", 13)
    content = pickle.loads(Path("run_iter_13.solverstate").read_bytes())
    assert content["iter"] == 13
    train(2, "-solver", solver, "--weights", "run_iter_10.solverstate", "-iterations", 3)
    # Data and weights are the same, but the momentum started at zero.
    distances = [
        abs(one - other).max()
        for one, other in zip(weights("run_iter_3.solverstate"), weights("run_iter_13.solverstate"), strict=True)
    ]
    assert 1e-4 < max(distances) < 1


PROGRAM = """
import json, sys
import caffe
import numpy as np
import perseus_like.caffe as perseus

perseus.init()
rank = perseus.rank()
solver = perseus.DistributedSolver(caffe.SGDSolver(f"{rank}.prototxt"))
begin = [blob.data.tolist() for blob in solver.net.params["first"]]
solver.step(3)
solver.snapshot()
end = [blob.data.tolist() for blob in solver.net.params["second"]]
with open(f"report.{rank}", "w") as file:
    json.dump({"begin": begin, "end": end, "iter": solver.iter, "calls": caffe.calls}, file)
"""


def test_every_rank_begins_and_ends_with_the_same_weights(tmp_path: Path) -> None:
    for rank in range(2):
        write_solver(Path(f"{rank}.prototxt"), more=f"seed: {rank}")
    Path("program.py").write_text(textwrap.dedent(PROGRAM))
    succeeded(start(2, "program.py"))
    first, second = (json.loads(Path(f"report.{rank}").read_text()) for rank in range(2))
    assert first["begin"] == second["begin"]
    assert first["end"] == second["end"]
    assert first["iter"] == 3
    snapshots = [[call[1] for call in facts["calls"] if call[0] == "snapshot"] for facts in (first, second)]
    assert snapshots == [["run_iter_3.solverstate"], []]


@pytest.mark.slow
def test_command_line_options(tmp_path: Path) -> None:
    solver = write_solver(tmp_path / "solver.prototxt", more="snapshot_after_train: false")
    code = "import sys, caffe; from perseus_like.caffe.__main__ import main; main(sys.argv[1:]); print(caffe.calls)"
    done = start(
        1, "-c", code, "train", "--solver", solver, "--gpu", "auto", "--level", 2, "--stage", "a,b", "--iterations", 1
    )
    assert done.returncode == 0, done.stderr
    assert "('device', 0)" in done.stdout
    assert 'train_state { level: 2 stage: "a" stage: "b" }' in done.stdout
    assert "'snapshot'" not in done.stdout
    done = start(2, "-m", "perseus_like.caffe", "train", "--solver", solver, "--gpu", "3")
    assert "--gpu 3: 1 devices for 2 ranks" in done.stderr
    done = start(1, "-m", "perseus_like.caffe", "train", "--solver", solver, "--weights", "a", "--snapshot", "b")
    assert "not allowed with" in done.stderr


@pytest.mark.slow
def test_settings_of_the_solver_file_are_combined_with_options(tmp_path: Path) -> None:
    own = """snapshot_after_train: false
solver_mode: GPU
device_id: 2
train_state: { stage: "own" level: 1 }
base_lr: 0.1"""
    solver = write_solver(tmp_path / "solver.prototxt", max_iter=1, more=own)
    code = "import sys, caffe; from perseus_like.caffe.__main__ import main; main(sys.argv[1:]); print(caffe.calls)"
    arguments = ["-c", code, "train", "--solver", solver, "--stage", "mine", "--level", 3]
    output = start(1, *arguments).stdout
    assert "('device', 2)" in output
    assert 'train_state { stage: "own" level: 3 stage: "mine" }' in " ".join(output.replace("\\n", " ").split())
    assert output.count("train_state") == 1
    output = start(2, *arguments).stdout
    assert "('device', 0)" in output
    assert "('device', 1)" in output
    assert "('device', 5)" in start(1, *arguments, "--gpu", 5).stdout


CALLS = "import sys, caffe; from perseus_like.caffe.__main__ import main; main(sys.argv[1:]); print(caffe.calls)"


def calls_of(*arguments: object) -> list[tuple[Any, ...]]:
    """Returns the calls of Caffe on one rank, without the solver's text."""
    done = succeeded(start(1, "-c", CALLS, "train", *arguments))
    return [call for call in ast.literal_eval(done.stdout) if call[0] != "solver"]


@pytest.mark.slow
def test_training_ends_as_in_caffe(tmp_path: Path) -> None:
    """At its end, training takes a snapshot and computes the loss and the test, if the solver's settings ask for it.

    It takes no second snapshot in the same iteration.
    """
    path = tmp_path / "solver.prototxt"
    write_solver(path, max_iter=10, more="display: 5\ntest_interval: 2")
    assert calls_of("--solver", path) == [
        ("snapshot", "run_iter_10.solverstate"),
        ("final loss", 10),
        ("final test", 10),
    ]
    write_solver(path, max_iter=9, more="snapshot_after_train: 1\ntest_interval: 2")
    assert calls_of("--solver", path) == [("snapshot", "run_iter_9.solverstate")]
    write_solver(path, max_iter=9, more="snapshot_after_train: false")
    assert calls_of("--solver", path) == []


def test_solve_ends_as_in_caffe_on_rank_0(tmp_path: Path) -> None:
    write_solver(tmp_path / "solver.prototxt", max_iter=3, more="snapshot_after_train: false\ntest_interval: 1")
    program = """
    import caffe
    import perseus_like.caffe as perseus

    perseus.init()
    solver = perseus.DistributedSolver(caffe.get_solver("solver.prototxt"))
    assert solver.solve()
    ends = [call for call in caffe.calls if call[0] not in ("solver", "multiprocess")]
    with open(f"report.{perseus.rank()}", "w") as file:
        print(solver.iter, ends, file=file)
    """
    Path("program.py").write_text(textwrap.dedent(program))
    succeeded(start(2, "program.py"))
    assert [Path(f"report.{rank}").read_text() for rank in range(2)] == ["3 [('final test', 3)]\n", "3 []\n"]


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["", 'snapshot_prefix: "."'], ids=["no prefix", "a folder"])
def test_snapshots_are_named_after_the_solvers_file(prefix: str, tmp_path: Path) -> None:
    path = tmp_path / "lenet.prototxt"
    path.write_text(f"max_iter: 1\n{prefix}\n")
    folder = Path() if prefix else tmp_path
    for switches in ([], ["--stage", "a"], ["--iterations", 2]):
        (call,) = calls_of("--solver", path, *switches)
        assert Path(call[1]) == folder / f"lenet_iter_{2 if 2 in switches else 1}.solverstate"


def test_a_signal_after_a_snapshot_takes_no_second_snapshot(tmp_path: Path) -> None:
    solver = write_solver(tmp_path / "solver.prototxt", max_iter=8)
    solver.write_text(solver.read_text().replace("snapshot: 10", "snapshot: 2"))
    main = "main(arguments)\nprint([call for call in caffe.calls if call[0] == 'snapshot'])\n"
    Path("program.py").write_text(SIGNALLED.replace("sys.exit(main(arguments))\n", main))
    done = succeeded(start(2, "program.py", int(signal.SIGINT), "train", "--solver", solver))
    assert "[('snapshot', 'run_iter_2.solverstate'), ('snapshot', 'run_iter_4.solverstate')]" in done.stdout


SIGNALLED = """
import os, sys
import caffe
from perseus_like import rank
from perseus_like.caffe.__main__ import main

signum, arguments = int(sys.argv[1]), sys.argv[2:]
make = caffe.get_solver

def with_signal(path):
    solver = make(path)
    def send():
        if solver.iter == 3 and rank() == 1:
            os.kill(os.getpid(), signum)
    solver.add_callback(send, lambda: None)
    return solver

caffe.get_solver = with_signal
sys.exit(main(arguments))
"""


@pytest.mark.parametrize(
    ("signum", "switches", "snapshots"),
    [
        (signal.SIGINT, [], [4]),
        (signal.SIGHUP, [], [4, 8]),
        (signal.SIGINT, ["-sigint_effect", "snapshot"], [4, 8]),
        (signal.SIGINT, ["--sigint_effect", "none"], [8]),
    ],
)
def test_a_signal_to_one_rank_takes_effect_on_all_ranks(
    signum: int, switches: list[str], snapshots: list[int], tmp_path: Path
) -> None:
    solver = write_solver(tmp_path / "solver.prototxt", max_iter=8)
    Path("program.py").write_text(SIGNALLED)
    succeeded(start(2, "program.py", signum, "train", "--solver", solver, *switches))
    assert sorted(Path().glob("run_iter_*")) == [Path(f"run_iter_{iteration}.solverstate") for iteration in snapshots]


def test_without_caffe_the_error_says_how_to_build_it(tmp_path: Path) -> None:
    done = start(1, "-m", "perseus_like.caffe", "train", "--solver", "none", caffe=False)
    assert done.returncode != 0
    assert "make pycaffe" in done.stderr
