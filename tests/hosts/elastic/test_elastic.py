"""Checks that elastic jobs on several hosts train on if workers die, and if hosts join, leave, crash or are cut off."""

from __future__ import annotations

import os
import random
import select
import signal
import time
from pathlib import Path

import pytest

from tests.elastic.job import Job, Start
from tests.job import LIMIT_SECONDS, wait_until

from ..conftest import TestBeds, network_shell, processes_of
from ..network_test_bed import NetworkTestBed

pytestmark = pytest.mark.usefixtures("mpirun")

# An agent of the launcher that does not answer for this time is lost, also on a machine that is too busy.
HEARTBEAT = 10


def rank_of(job: Job, rank: int) -> int:
    """Returns the process id of a rank in the last generation that has started."""
    return int(
        next(event["pid"] for event in reversed(job.events) if event["kind"] == "start" and event["rank"] == rank)
    )


@pytest.mark.parametrize("program", ["train_numpy.py", pytest.param("train_torch_sharded.py", marks=pytest.mark.slow)])
def test_a_worker_is_killed_and_a_host_joins(program: str, test_beds: TestBeds, start: Start) -> None:
    test_bed = test_beds(3)
    cooldown = ("--blacklist-cooldown-range", "1", "1")
    job = start(test_bed, "--min-np", "2", *cooldown, hosts="h1:2,h2:1", program=program)
    job.commit_of(3)
    os.kill(rank_of(job, 2), signal.SIGKILL)  # rank 2 is on h2
    job.next_line("a worker on h2 has died; the job does not use this host for 1 s")
    job.commit_of(3)
    job.hosts("h1:1,h2:1,h3:2")
    job.commit_of(4)
    job.finish_trained()


def test_each_worker_has_the_name_of_its_host(test_beds: TestBeds, start: Start) -> None:
    job = start(test_beds(2), "--min-np", "3", hosts="h1:2,h2:1")
    scripts = [job.next_event("script") for _ in range(3)]
    names = sorted((event["variables"][0], event["host"]) for event in scripts)
    assert names == [("0", "h1"), ("1", "h1"), ("2", "h2")]
    job.commit_of(3)
    assert job.finish() == 0, job.text


def test_a_new_host_goes_on_alone_before_its_first_commit(test_beds: TestBeds, start: Start) -> None:
    job = start(test_beds(2), "--min-np", "1", hosts="h2:1", pause="0.6")
    job.commit_of(1)
    job.hosts("h2:1,h1:1")
    for _ in range(2):
        job.next_event("start", lambda event: bool(event["size"] == 2))
    os.kill(rank_of(job, 0), signal.SIGKILL)  # rank 0 is on h2, whose agent had the only commits
    job.next_line("1 workers on h1:1")
    job.finish_trained()


def lose_the_only_state(test_bed: NetworkTestBed, start: Start, seconds: int, *options: str) -> Job:
    """Kills the only worker, which is on h2. h1 could train at once, but has no state. h2 returns after `seconds`."""
    cooldown = ("--blacklist-cooldown-range", str(seconds), str(seconds))
    job = start(test_bed, "--min-np", "1", "--max-np", "1", *cooldown, *options, hosts="h2:1,h1:1")
    job.commit_of(1)
    os.kill(rank_of(job, 0), signal.SIGKILL)
    job.next_line("waiting for the state of a later generation, which h2 has")
    return job


def test_a_host_with_the_only_state_returns(test_beds: TestBeds, start: Start) -> None:
    job = lose_the_only_state(test_beds(2), start, 1)
    job.commit_of(1)
    job.finish_trained()


def test_the_wait_for_the_only_state_ends(test_beds: TestBeds, start: Start) -> None:
    job = lose_the_only_state(test_beds(2), start, 600, "--elastic-timeout", "1")
    job.next_line("the job ends: no host that has the training's state is left")
    assert job.end() != 0


def test_a_host_of_a_fixed_list_returns(test_beds: TestBeds, start: Start) -> None:
    """Its cool-down ends while the next generation starts."""
    cooldown = ("--blacklist-cooldown-range", "1", "1")
    job = start(test_beds(2), "--min-np", "1", *cooldown, hosts="h1:1,h2:1", is_static=True)
    job.commit_of(2)
    os.kill(rank_of(job, 1), signal.SIGKILL)
    job.next_line("a worker on h2 has died; the job does not use this host for 1 s")
    job.next_line("generation 2: 1 workers on h1:1")
    job.commit_of(2)
    job.finish_trained()


def test_a_host_in_a_single_answer_costs_nothing(test_beds: TestBeds, start: Start, tmp_path: Path) -> None:
    """A host stays in the list while it is missing in one answer, but it is not new for a second time then."""
    job = start(test_beds(2), "--mpi", "--min-np", "1", "--reset-limit", "0", hosts="h1:1")
    job.commit_of(1)
    # The third run of this script gives no answer before the end of the test.
    os.mkfifo(tmp_path / "third")
    script = tmp_path / "changed.sh"
    script.write_text(
        f"#!/bin/sh\ncd {tmp_path}\necho h1:1\n"
        "mkdir first 2>&- && echo h2:1 && exit\nmkdir second 2>&- && exit\nread line <third\n"
    )
    script.chmod(0o755)
    script.rename(tmp_path / "discover.sh")
    job.next_line("hosts: h1:1, h2:1")
    for _ in range(40):  # longer than a generation with h2 would take to begin
        job.commit_of(1)
    assert job.finish() == 0, job.text
    assert sum("perseusrun: generation" in line for line in job.lines) == 1, job.text
    job.assert_trained()


def test_a_remote_shell_that_prints_lines(test_beds: TestBeds, start: Start, tmp_path: Path) -> None:
    """A job runs although the remote shell prints lines, as some .bashrc files do.

    No command line shows the secret or the value of a forwarded variable.
    """
    test_bed = test_beds(2)
    shell = tmp_path / "greeting-shell"
    shell.write_text(f'#!/bin/sh\necho Welcome; printf "no newline "\nexec {test_bed.remote_shell} "$@"\n')
    shell.chmod(0o755)
    job = start(test_bed, "--min-np", "2", "-x", "MINE=hidden-value", hosts="h1:1,h2:1", shell=str(shell))
    job.commit_of(2)
    environment = Path(f"/proc/{rank_of(job, 0)}/environ").read_bytes()
    secret = next(entry for entry in environment.split(b"\0") if entry.startswith(b"PERSEUS_ELASTIC=")).split()[2]
    assert b"MINE=hidden-value" in environment.split(b"\0")
    for pid in job.processes():
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except FileNotFoundError:
            continue  # it has ended
        assert secret not in line
        assert b"--host-discovery-script" in line or b"hidden-value" not in line  # the line that the user wrote
    job.finish_trained()
    starts = [event for event in job.events if event["kind"] == "start"]
    assert all(event["has_right_variables"] for event in starts), job.text


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_for_states(pids: list[int], states: str) -> None:
    wait_until(lambda: all(state_of(pid) in states for pid in pids), lambda: str([state_of(pid) for pid in pids]))


@pytest.mark.slow
def test_a_job_that_is_stopped_and_continued(test_beds: TestBeds, start: Start) -> None:
    """Ctrl-Z for longer than the heartbeat stops the ranks of all hosts. The job then continues with its state."""
    job = start(test_beds(2), "--min-np", "2", "-x", f"PERSEUS_HEARTBEAT_TIMEOUT={HEARTBEAT}", hosts="h1:1,h2:1")
    job.commit_of(2)
    ranks = [rank_of(job, rank) for rank in (0, 1)]
    job.process.send_signal(signal.SIGTSTP)
    wait_for_states([job.process.pid, *ranks], "T")
    time.sleep(HEARTBEAT + 3)  # the test is about this time
    assert [state_of(pid) for pid in ranks] == ["T", "T"]
    before = len(job.lines)
    os.kill(job.process.pid, signal.SIGCONT)
    last = job.commit_of(2)["step"]
    job.next_event("commit", lambda event: event["step"] > last + 50)
    job.finish_trained()
    assert not any("perseusrun:" in line for line in job.lines[before:]), job.text


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_rank_0_is_killed_and_its_host_leaves(framework: str, test_beds: TestBeds, start: Start) -> None:
    test_bed = test_beds(3)
    job = start(test_bed, "--min-np", "2", hosts="h2:1,h3:1,h1:1", program=f"train_{framework}.py")
    job.commit_of(3)
    os.kill(rank_of(job, 0), signal.SIGKILL)
    job.next_line("a worker on h2 has died; the job does not use this host any more")
    job.commit_of(2)
    job.finish_trained()


@pytest.mark.slow
def test_a_host_crashes(test_beds: TestBeds, start: Start) -> None:
    test_bed = test_beds(3)
    job = start(test_bed, "--min-np", "2", hosts="h1:1,h2:1,h3:1")
    job.commit_of(3)
    test_bed.crash("h3")
    assert "the job does not use it any more" in job.next_line("h3 does not answer any more")
    job.commit_of(2)
    job.finish_trained()


@pytest.mark.slow
def test_a_host_whose_agent_does_not_answer(test_beds: TestBeds, start: Start) -> None:
    """The job continues without a host whose agent does not answer.

    The test stops the agent, because the test bed's remote shell does not use the network.
    """
    test_bed = test_beds(3)
    job = start(test_bed, "--min-np", "2", "-x", f"PERSEUS_HEARTBEAT_TIMEOUT={HEARTBEAT}", hosts="h1:1,h2:1,h3:1")
    job.commit_of(3)
    for pid in test_bed.processes("h3"):
        if b"elastic/agent.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGSTOP)
    job.next_line("h3 does not answer any more")
    job.commit_of(2)
    job.finish_trained()


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["h3", "h2"])
def test_a_cable_is_cut(lost: str, test_beds: TestBeds, start: Start, tmp_path: Path) -> None:
    """The job continues without a host that is cut off, to which the remote shell fails, too.

    The processes on this host end by themselves.
    """
    test_bed = test_beds(3)
    with network_shell(test_bed, tmp_path) as shell:
        servers = processes_of(test_bed)
        options = ("--min-np", "2", "-x", f"PERSEUS_HEARTBEAT_TIMEOUT={HEARTBEAT}")
        job = start(test_bed, *options, hosts="h2:1,h1:1,h3:1", shell=shell)
        before = job.commit_of(3)
        test_bed.cut(lost)
        job.next_line(f"{lost} does not answer any more; the job does not use it any more")
        assert job.commit_of(2)["step"] > before["step"]
        job.finish_trained()
        assert processes_of(test_bed) <= servers


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_workers_are_killed_at_random_moments(test_beds: TestBeds, start: Start) -> None:
    kills, chance = 50, random.Random(4)
    test_bed = test_beds(3)
    job = start(test_bed, "--min-np", "1", "--blacklist-cooldown-range", "1", "1", hosts="h1:1,h2:1,h3:1")
    for _ in range(kills):
        size = job.next_event("commit", lambda event: event["size"] >= 2)["size"]
        for _ in range(chance.randrange(4)):
            job.next_event("commit")
        os.kill(rank_of(job, chance.randrange(size)), signal.SIGKILL)
        job.next_line("has died; the job does not use this host")
    job.commit_of(3)
    job.finish_trained()


@pytest.mark.slow
def test_the_launcher_is_killed(test_beds: TestBeds, start: Start) -> None:
    job = start(test_beds(2), "--min-np", "2", hosts="h1:1,h2:1")
    job.commit_of(2)
    descriptors = [os.pidfd_open(pid) for pid in job.processes() if pid != job.process.pid]
    job.process.kill()
    for descriptor in descriptors:
        assert select.select([descriptor], [], [], LIMIT_SECONDS)[0], "a process of the job outlives the launcher"
        os.close(descriptor)


@pytest.mark.slow
def test_an_error_of_the_program_ends_the_job(test_beds: TestBeds, start: Start) -> None:
    options = ("--min-np", "1", "--blacklist-cooldown-range", "0", "0", "-x", "FAILS_AT_STEP=3")
    job = start(test_beds(2), *options, hosts="h1:1,h2:1")
    assert job.end() == 1
    assert "3 generations in a row have failed before their first commit" in job.text


def test_a_host_that_cannot_be_reached(test_beds: TestBeds, start: Start) -> None:
    job = start(test_beds(1), "--min-np", "1", "--mpi", hosts="h1:1,h9:1")
    job.next_line("h9 cannot be reached, or its agent does not start; the job does not use it any more")
    job.commit_of(1)
    job.finish_trained()
