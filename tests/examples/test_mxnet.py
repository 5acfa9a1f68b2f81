"""Runs short forms of the MXNet examples in their own environment."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.job import python_of, run_to_end, succeeded

EXAMPLES = Path(__file__).parents[2] / "examples" / "mxnet"
Run = Callable[..., str]


@pytest.fixture
def run() -> Run:
    """Returns a function that runs a program of examples/mxnet on two ranks to its end and returns its output."""
    python = python_of("mxnet")

    def start(*command: str, launcher: tuple[str, ...] | None = None, **environment: str) -> str:
        words = launcher or (str(python), "-m", "perseus_like.launch", "--no-prefix", "-np", "2", str(python))
        path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
        done = succeeded(run_to_end([*words, *command], None, True, PATH=path, **environment))
        return done.stdout

    return start


@pytest.mark.slow
def test_digits_agrees_with_one_process(run: Run) -> None:
    output = run(str(EXAMPLES / "digits.py"), "--epochs", "3", "--compare-single")
    accuracy, difference = re.search(r"images: (\S+) %", output), re.search(r"at most (\S+)", output)
    assert accuracy is not None, output
    assert float(accuracy[1]) > 80
    assert difference is not None, output
    assert float(difference[1]) < 1e-5


@pytest.mark.slow
def test_digits_with_sync_batch_norm_and_half_precision(run: Run) -> None:
    output = run(str(EXAMPLES / "digits.py"), "--epochs", "3", "--sync-batch-norm", "--fp16-allreduce")
    accuracy = re.search(r"images: (\S+) %", output)
    assert accuracy is not None, output
    assert float(accuracy[1]) > 80


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--sync-batch-norm", "--gc-type", "fp16"]])
def test_module_fit_with_the_key_value_store(run: Run, more: list[str]) -> None:
    output = run(str(EXAMPLES / "module_fit.py"), "--num-epochs", "2", *more)
    assert output.count("weights as on rank 0: True") == 2, output


@pytest.mark.slow
def test_the_script_that_starts_aiacc_programs(run: Run) -> None:
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("no mpirun")
    output = run("sh", str(EXAMPLES / "config.sh"), "--num-epochs", "1", launcher=(mpirun, "-np", "2"))
    assert output.count("weights as on rank 0: True") == 2, output
