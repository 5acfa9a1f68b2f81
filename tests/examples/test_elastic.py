"""Runs the elastic examples in jobs that grow and shrink."""

from __future__ import annotations

import importlib.util
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.elastic.conftest import Job

EXAMPLES = Path(__file__).parents[2] / "examples/elastic"
Start = Callable[..., Any]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Returns a function that starts an example. Its job is ended after the test."""
    jobs: list[Job] = []

    def begin(example: str, *arguments: str) -> Job:
        jobs.append(Job(tmp_path, str(EXAMPLES / example), arguments, ("--min-np", "1"), hosts="localhost:1"))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.process.kill()
        job.process.wait()


def need(framework: str) -> None:
    """Skips the test without the framework, which is not imported here."""
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")


PROGRAMS = [("pytorch_digits.py", "torch"), ("tensorflow_digits.py", "tensorflow"), ("keras_digits.py", "keras")]


@pytest.mark.slow
@pytest.mark.parametrize(("program", "framework"), PROGRAMS)
def test_the_examples_go_on_while_workers_come_and_go(start: Start, program: str, framework: str) -> None:
    need(framework)
    job = start(program, "--epochs", "1000000")
    job.next_line(" with 1 workers: loss")
    job.hosts("localhost:2")
    job.next_line(" with 2 workers: loss")
    job.hosts("localhost:1")
    job.next_line(" with 1 workers: loss")
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 130, job.text
    epochs = [int(found) for found in re.findall(r"^epoch (\d+) with", job.text, re.MULTILINE)]
    assert epochs == list(range(1, len(epochs) + 1)), "an epoch was lost or ran twice"


@pytest.mark.slow
@pytest.mark.parametrize(("program", "framework"), PROGRAMS)
def test_the_examples_learn(start: Start, program: str, framework: str) -> None:
    need(framework)
    job = start(program)
    assert job.end() == 0, job.text
    assert re.search(r"^1 workers in the end, test accuracy 9", job.text, re.MULTILINE), job.text


def test_the_discovery_script_prints_slots_of_this_host() -> None:
    done = subprocess.run([EXAMPLES / "hosts.sh"], capture_output=True, text=True, check=True)
    assert done.stdout in ("localhost:2\n", "localhost:3\n")
