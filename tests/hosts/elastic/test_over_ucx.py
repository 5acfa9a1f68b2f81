"""Checks that workers on several hosts survive the loss of others, if UCX connects them and perseusrun starts them."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.elastic.job import Job, Start
from tests.job import LIMIT_SECONDS

from ..conftest import UCX_LIBRARY, TestBeds, network_shell, processes_of
from .test_elastic import wait_for_states

COOLDOWN = ("--blacklist-cooldown-range", "1", "1")
HEARTBEAT = 5
RECOVERY_SECONDS = 2  # from the death of a worker to the next commit of the others

pytestmark = pytest.mark.usefixtures("ucx")


def members(job: Job) -> dict[int, str]:
    """Reads until all workers of the next generation train. Returns the host of each one, by its process id."""
    job.next_line("perseusrun: generation ")
    size = job.next_event("start")["size"]
    while len(last_starts(job)) < size:
        job.next_event("start")
    return hosts_in(last_starts(job))


def last_starts(job: Job) -> list[dict[str, Any]]:
    """Returns the reports of the workers that have begun to train in the last generation."""
    begin = max(number for number, line in enumerate(job.lines) if line.startswith("perseusrun: generation "))
    events = [json.loads(line) for line in job.lines[begin:] if line.startswith("{")]
    return [event for event in events if event["kind"] == "start"]


def hosts_in(starts: list[dict[str, Any]]) -> dict[int, str]:
    return {event["pid"]: event["host"] for event in starts}


def without(host: str, members: dict[int, str]) -> dict[int, str]:
    return {pid: each for pid, each in members.items() if each != host}


def finish(job: Job) -> None:
    """Ends the training, and checks it and what each worker has reported."""
    job.finish_trained()
    steps: dict[int, int] = {}
    committed = 0
    for event in job.events:
        if event["kind"] == "commit":
            committed = event["step"]
        elif event["kind"] == "start":
            assert event["has_right_variables"], job.text
            assert not event["has_mpi"], job.text
            # A worker that began again from an older step than another has lost steps.
            assert event["step"] >= committed, job.text
            assert event["steps_of_process"] > steps.get(event["pid"], -1), job.text
            steps[event["pid"]] = event["steps_of_process"]


def test_survivors_keep_their_processes(test_beds: TestBeds, start: Start) -> None:
    job = start(test_beds(3), "--min-np", "2", *COOLDOWN, hosts="h1:1,h2:1,h3:1")
    first = members(job)
    job.commit_of(3)
    job.kill(next(pid for pid, host in first.items() if host == "h3"))
    survivors = without("h3", first)
    assert members(job) == survivors
    job.commit_of(2)
    third = members(job)
    assert sorted(third.values()) == ["h1", "h2", "h3"]
    assert without("h3", third) == survivors
    job.commit_of(3)
    finish(job)


@pytest.mark.parametrize("lost", ["h3", "h2"])
def test_all_processes_of_a_host_are_killed(lost: str, test_beds: TestBeds, start: Start) -> None:
    """Rank 0 is on h2."""
    test_bed = test_beds(3)
    job = start(test_bed, "--min-np", "2", hosts="h2:1,h3:1,h1:1")
    first = members(job)
    job.commit_of(3)
    test_bed.crash(lost)
    job.next_line(f"{lost} gets no new worker any more")
    assert members(job) == without(lost, first)
    job.commit_of(2)
    finish(job)


# It is slow because a busy machine may need longer; the others check what the survivors do, in any time.
@pytest.mark.slow
@pytest.mark.parametrize("lost", ["a worker", "a host"])
def test_survivors_go_on_soon(lost: str, test_beds: TestBeds, start: Start) -> None:
    test_bed = test_beds(3)
    job = start(test_bed, "--min-np", "2", *COOLDOWN, hosts="h1:1,h2:1,h3:1")
    first = members(job)
    job.commit_of(3)
    began = time.monotonic()
    if lost == "a host":
        test_bed.crash("h3")
    else:
        job.kill(next(pid for pid, host in first.items() if host == "h3"))
    assert members(job) == without("h3", first)
    job.commit_of(2)
    assert time.monotonic() < began + RECOVERY_SECONDS
    finish(job)


def test_hosts_come_and_go(test_beds: TestBeds, start: Start) -> None:
    job = start(test_beds(3), "--min-np", "1", hosts="h1:1,h2:1")
    first = members(job)
    job.hosts("h1:1,h2:1,h3:2")
    second = members(job)
    assert {**second, **first} == second
    job.commit_of(4)
    job.hosts("h1:1,h3:2")
    third = members(job)
    assert third == without("h2", second)
    job.commit_of(3)
    finish(job)


def test_a_job_on_the_launchers_host_grows(test_beds: TestBeds, start: Start) -> None:
    job = start(test_beds(2), "--min-np", "1", "-x", "PERSEUS_HOST_TRANSPORT=ucx", hosts="h1:1")
    first = members(job)
    job.hosts("h1:1,h2:1")
    assert without("h2", members(job)) == first
    job.commit_of(2)
    finish(job)


def test_a_host_that_cannot_be_reached(test_beds: TestBeds, start: Start) -> None:
    job = start(test_beds(2), "--min-np", "1", hosts="h1:1,h2:1,h9:1")
    job.next_line("h9 could not be started: remote-shell exited with code 255; see its messages above")
    job.commit_of(2)
    finish(job)


def test_the_launcher_is_killed(test_beds: TestBeds, start: Start) -> None:
    job = start(test_beds(2), "--min-np", "2", hosts="h1:1,h2:1")
    job.commit_of(2)
    descriptors = [os.pidfd_open(pid) for pid in job.processes() if pid != job.process.pid]
    job.process.kill()
    for descriptor in descriptors:
        assert select.select([descriptor], [], [], LIMIT_SECONDS)[0], "a process of the job outlives the launcher"
        os.close(descriptor)


def test_a_signal_ends_the_job(test_beds: TestBeds, start: Start) -> None:
    job = start(test_beds(2), "--min-np", "2", hosts="h1:1,h2:1")
    job.commit_of(2)
    job.process.terminate()
    assert job.end() == 128 + signal.SIGTERM, job.text


def test_an_error_of_the_program_ends_the_job(test_beds: TestBeds, start: Start) -> None:
    """The launcher has the error from another host, and its exit code."""
    job = start(test_beds(2), "--min-np", "1", "-x", "FAILS_AT_STEP=3", hosts="h2:1")
    assert job.end() == 1
    job.text.index("RuntimeError: the same in every generation")
    assert "worker 0 on h2" in job.text


def test_no_command_line_has_the_secret(test_beds: TestBeds, start: Start) -> None:
    job = start(test_beds(2), "--min-np", "2", hosts="h1:1,h2:1")
    pid = next(iter(members(job)))
    environment = Path(f"/proc/{pid}/environ").read_bytes()
    secret = next(entry for entry in environment.split(b"\0") if entry.startswith(b"PERSEUS_ELASTIC=")).split()[2]
    assert len(secret) == 64
    for each in job.processes():
        assert secret not in Path(f"/proc/{each}/cmdline").read_bytes()
    finish(job)


@pytest.mark.slow
def test_a_job_that_is_stopped_and_continued(test_beds: TestBeds, start: Start) -> None:
    """Ctrl-Z for longer than the heartbeat stops the workers of all hosts. They then continue."""
    job = start(test_beds(2), "--min-np", "2", "-x", f"PERSEUS_HEARTBEAT_TIMEOUT={HEARTBEAT}", hosts="h1:1,h2:1")
    workers = [*members(job)]
    job.commit_of(2)
    job.process.send_signal(signal.SIGTSTP)
    wait_for_states([job.process.pid, *workers], "T")
    time.sleep(HEARTBEAT + 3)  # the test is about this time
    before = len(job.lines)
    os.kill(job.process.pid, signal.SIGCONT)
    last = job.commit_of(2)["step"]
    job.next_event("commit", lambda event: event["step"] > last + 50)
    assert not any("perseusrun:" in line for line in job.lines[before:]), job.text
    finish(job)


def test_a_host_without_ucx_joins(test_beds: TestBeds, start: Start) -> None:
    """Only the worker on this host fails."""
    test_bed = test_beds(3)
    hide = ["mount", "--bind", "/dev/null", str(UCX_LIBRARY.resolve())]
    subprocess.run(test_bed.command("h3", hide), check=True)
    job = start(test_bed, "--min-np", "2", hosts="h1:1,h2:1")
    first = members(job)
    job.hosts("h1:1,h2:1,h3:1")
    job.next_line("has no UCX")
    job.next_line("h3 gets no new worker any more")
    assert members(job) == first
    job.commit_of(2)
    finish(job)


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["h3", "h2"])
def test_a_cable_is_cut(lost: str, test_beds: TestBeds, start: Start, tmp_path: Path) -> None:
    """The remote shell is cut, too. The processes on this host end by themselves."""
    test_bed = test_beds(3)
    with network_shell(test_bed, tmp_path) as shell:
        servers = processes_of(test_bed)
        options = ("--min-np", "2", "-x", f"PERSEUS_HEARTBEAT_TIMEOUT={HEARTBEAT}")
        job = start(test_bed, *options, hosts="h2:1,h1:1,h3:1", shell=shell)
        first = members(job)
        job.commit_of(3)
        test_bed.cut(lost)
        job.next_line("does not answer any more")
        assert members(job) == without(lost, first)
        job.commit_of(2)
        finish(job)
        assert processes_of(test_bed) <= servers


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_workers_are_killed_at_random_moments(test_beds: TestBeds, start: Start) -> None:
    kills, chance = 30, random.Random(4)
    job = start(test_beds(3), "--min-np", "1", *COOLDOWN, hosts="h1:1,h2:1,h3:1")
    for _ in range(kills):
        job.next_event("commit", lambda event: event["size"] >= 2)
        for _ in range(chance.randrange(4)):
            job.next_event("commit")
        before = hosts_in(last_starts(job))
        dead = chance.choice([*before])
        os.kill(dead, signal.SIGKILL)
        job.next_line(f"(pid {dead}) was killed by SIGKILL")
        assert before.keys() - {dead} <= members(job).keys(), job.text
    job.commit_of(3)
    finish(job)
