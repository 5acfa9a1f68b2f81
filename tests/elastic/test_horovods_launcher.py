"""Tests of elastic jobs that a program starts by the modules of Horovod's launcher."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perseus_like.names import folder_of

from .job import PROGRAMS, Job, jobs_in

StartByHorovod = Callable[..., Job]
STATUS = "Horovod detected that one or more processes exited with non-zero status: "

# The script prints a second host after two of its runs have started within the same second of the clock.
TWO_IN_A_SECOND = """#!/bin/sh
now=$(date +%s)
[ "$now" = "$(cat last)" ] && touch fast
echo "$now" > last
echo localhost:1
[ ! -e fast ] || echo 127.0.0.2:1
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StartByHorovod]:
    """Returns a function that starts a job of train_numpy.py, for example `start("-np", "2", hosts="localhost:2")`."""
    monkeypatch.setenv("PYTHONPATH", folder_of("horovod"))
    launcher = [sys.executable, str(PROGRAMS / "horovods_launcher.py")]
    with jobs_in(tmp_path) as begin:

        def run(*options: str, hosts: str = "localhost:1") -> Job:
            return begin("train_numpy.py", ("0.01",), options, hosts, launcher)

        yield run


def test_the_interval_of_discovery_in_the_module_is_used(
    start: StartByHorovod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISCOVERY_SECONDS", "0.01")
    script = tmp_path / "often.sh"
    script.write_text(TWO_IN_A_SECOND)
    script.chmod(0o755)
    job = start("-np", "1", "--max-num-proc", "2", "--log-level", "INFO", "--host-discovery-script", str(script))
    parsed = job.next_event("parsed")
    assert (parsed["num_proc"], parsed["variables"]) == (1, {"HOROVOD_LOG_LEVEL": "INFO"})
    job.commit_of(2)
    job.finish_trained()


def test_every_worker_fails(start: StartByHorovod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAILS_ON", "localhost")
    raised = start("-np", "1").next_event("raised")
    assert raised["text"].startswith(f"{STATUS}perseusrun ended with exit code 6: all workers have failed")


def test_too_many_resets(start: StartByHorovod) -> None:
    job = start("-np", "2", "--min-num-proc", "1", "--reset-limit", "0", hosts="localhost:1,127.0.0.2:1")
    job.commit_of(2)
    job.kill(job.workers()[0])
    raised = job.next_event("raised")
    assert raised["is_limit"]
    assert raised["text"].startswith(STATUS)
    job.end()


@pytest.mark.parametrize("variable", [None, "3"])
def test_too_few_slots(start: StartByHorovod, monkeypatch: pytest.MonkeyPatch, variable: str | None) -> None:
    """The time in the environment takes precedence over the time in the module, as in Horovod."""
    monkeypatch.setenv("TIMEOUT_SECONDS", "1")
    if variable:
        monkeypatch.setenv("HOROVOD_ELASTIC_TIMEOUT", variable)
    raised = start("-np", "5").next_event("raised")
    assert f"waited {variable or 1} s for 5 workers (--elastic-timeout)" in raised["text"]
