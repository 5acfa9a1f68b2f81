"""Runs the elastic examples in jobs that grow and shrink."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.elastic.job import Job, Start, jobs_in
from tests.job import needs

EXAMPLES = Path(__file__).parents[2] / "examples/elastic"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Returns a function that starts an example. Its job is ended after the test."""
    with jobs_in(tmp_path) as begin:

        def run(example: str, *arguments: str) -> Job:
            return begin(str(EXAMPLES / example), arguments, ("--min-np", "1"), hosts="localhost:1")

        yield run


PROGRAMS = [("pytorch_digits.py", "torch"), ("tensorflow_digits.py", "tensorflow"), ("keras_digits.py", "keras")]


@pytest.mark.slow
@pytest.mark.parametrize(("program", "framework"), PROGRAMS)
def test_the_examples_go_on_while_workers_come_and_go(start: Start, program: str, framework: str) -> None:
    needs(framework)
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
    needs(framework)
    job = start(program)
    assert job.end() == 0, job.text
    assert re.search(r"^1 workers in the end, test accuracy 9", job.text, re.MULTILINE), job.text


def test_the_discovery_script_prints_slots_of_this_host() -> None:
    done = subprocess.run([EXAMPLES / "hosts.sh"], capture_output=True, text=True, check=True)
    assert done.stdout in ("localhost:2\n", "localhost:3\n")
