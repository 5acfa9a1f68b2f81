"""Checks that training makes all its steps, and that no process is left, if workers die and hosts join and leave."""

from __future__ import annotations

import os
import random
import select
import signal
import sys
from pathlib import Path

import pytest

from tests.job import LIMIT_SECONDS, run_to_end

from .job import LAUNCHER, Start


@pytest.mark.parametrize(
    ("framework", "state"),
    [
        ("torch", ()),
        ("keras", ("TensorFlowKerasState",)),
        pytest.param("keras", ("TensorFlowState",), marks=pytest.mark.slow),
    ],
)
def test_rank_0_is_killed_and_replaced(framework: str, state: tuple[str, ...], start: Start) -> None:
    """Steps have three passes, and commits are after any pass. The other worker has the state."""
    pytest.importorskip("torch" if framework == "torch" else "tensorflow")
    options = ("--min-np", "1", "--blacklist-cooldown-range", "0", "0")
    job = start(f"train_{framework}.py", *options, hosts="localhost:2", arguments=("0.01", "3", *state))
    job.commit_of(2)
    zero = next(event["pid"] for event in job.events if event.get("rank") == 0)
    job.replace(zero)
    job.next_event("start", lambda event: bool(event["size"] == 2))
    job.commit_of(2)
    job.finish_trained()


@pytest.mark.parametrize(
    ("framework", "arguments"),
    [
        ("torch", ("3",)),
        pytest.param("keras", ("1", "TensorFlowKerasState"), marks=pytest.mark.slow),
        pytest.param("keras", ("3", "TensorFlowState"), marks=pytest.mark.slow),
    ],
)
def test_one_rank_becomes_two_and_one_again(framework: str, arguments: tuple[str, ...], start: Start) -> None:
    """Gradients are reduced although the function was traced, or the optimizer was wrapped, when there was one rank."""
    pytest.importorskip("torch" if framework == "torch" else "tensorflow")
    job = start(f"train_{framework}.py", "--min-np", "1", hosts="localhost:1", arguments=("0.01", *arguments))
    job.commit_of(1)
    job.hosts("localhost:2")
    job.commit_of(2)
    job.hosts("localhost:1")
    job.commit_of(1)
    job.finish_trained()


def test_workers_and_hosts_come_and_go(start: Start) -> None:
    options = ("--min-np", "2", "--max-np", "4", "--blacklist-cooldown-range", "1", "1")
    job = start("train_numpy.py", *options, hosts="localhost:2,127.0.0.2:1", arguments=("0.02",))
    assert job.next_event("commit")["size"] == 3
    zero = next(event["pid"] for event in job.events if event.get("rank") == 0)
    job.replace(zero)
    # Rank 0 reported the commits before. After the cool-down the host gets a new worker.
    job.commit_of(3)
    # Then another host joins, two of whose slots exceed --max-np.
    job.hosts("localhost:2,127.0.0.2:1,127.0.0.3:3")
    job.commit_of(4)
    # Then hosts lose slots, among them the oldest host.
    job.hosts("localhost:1,127.0.0.3:1")
    job.commit_of(2)
    job.finish_trained()


def test_rank_variables_of_every_generation(start: Start) -> None:
    """HOROVOD_RANK and the other variables are right when the script starts and in each generation."""
    job = start("train_numpy.py", "--min-np", "1", hosts="localhost:1", arguments=("0.02",))
    assert job.next_event("script")["variables"] == ["0", "1", "0", "1", "0", "1"]
    job.commit_of(1)
    job.hosts("localhost:1,127.0.0.2:2")
    scripts = [job.next_event("script")["variables"] for _ in range(2)]
    assert sorted(scripts) == [["1", "3", "1", "3", "0", "1"], ["2", "3", "2", "3", "0", "1"]]
    job.commit_of(3)
    job.hosts("127.0.0.2:2")
    job.commit_of(2)
    assert job.finish() == 0, job.text
    starts = [event for event in job.events if event["kind"] == "start"]
    assert len(starts) == 6, job.text
    assert all(event["has_right_variables"] for event in starts), job.text
    job.assert_trained()


def test_a_host_that_leaves_before_its_workers_are_ready_costs_nothing(start: Start) -> None:
    options = ("--min-np", "1", "--reset-limit", "0", "-x", "WAITS_ON=127.0.0.2")
    job = start("train_numpy.py", *options, hosts="localhost:1", arguments=("0.02",))
    job.commit_of(1)
    job.hosts("localhost:1,127.0.0.2:1")
    job.next_event("script")
    job.hosts("localhost:1")
    assert "127.0.0.2" not in job.next_line("perseusrun: hosts: localhost:1")
    job.commit_of(1)
    assert job.finish() == 0, job.text
    assert "generation 2" not in job.text
    job.assert_trained()


def test_a_host_that_is_missing_in_one_answer_stays(start: Start, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("""#!/bin/sh
echo localhost:1
if [ -e hide ]; then mv hide hidden; exit; fi
echo 127.0.0.2:1
if [ -e hidden ]; then touch shown; fi
""")
    script.chmod(0o755)
    options = ("--min-np", "1", "--reset-limit", "0", "--host-discovery-script", str(script))
    job = start("train_numpy.py", *options, arguments=("0.02",))
    job.commit_of(2)
    (tmp_path / "hide").touch()
    while not (tmp_path / "shown").exists():
        job.commit_of(2)
    assert job.finish() == 0, job.text
    assert "generation 2" not in job.text
    job.assert_trained()


def test_workers_are_interrupted_once_the_workers_of_a_new_host_are_ready(start: Start, tmp_path: Path) -> None:
    options = ("--min-np", "1", "-x", "WAITS_ON=127.0.0.2")
    job = start("train_numpy.py", *options, hosts="localhost:1", arguments=("0.02",))
    job.commit_of(1)
    job.hosts("localhost:1,127.0.0.2:1")
    job.next_event("script")
    for _ in range(10):
        job.commit_of(1)
    assert not any(event["kind"] == "interrupted" for event in job.events), job.text
    (tmp_path / "go").touch()
    job.next_event("interrupted")
    job.commit_of(2)
    job.finish_trained()


def test_survivors_leave_a_host_that_failed(start: Start) -> None:
    job = start("train_numpy.py", "--min-np", "1", hosts="localhost:2,127.0.0.2:1", arguments=("0.02",))
    job.commit_of(3)
    zero = next(event["pid"] for event in job.events if event.get("rank") == 0)
    job.replace(zero)
    assert "1 workers on 127.0.0.2:1" in job.lines[-1], job.text
    job.commit_of(1)
    job.finish_trained()


def test_every_host_has_failed(start: Start) -> None:
    job = start("train_numpy.py", "--min-np", "2", hosts="localhost:2,127.0.0.2:2", arguments=("0.02",))
    job.commit_of(4)
    ranks = {event["rank"]: event["pid"] for event in job.events if event["kind"] == "start"}
    for rank in (0, 2):
        os.kill(ranks[rank], signal.SIGKILL)
    assert job.end() == 137, job.text
    assert "the job ends: all hosts have failed" in job.text


def test_one_worker_is_killed_before_any_is_ready(start: Start, tmp_path: Path) -> None:
    job = start("train_numpy.py", "--min-np", "1", "-x", "WAITS_ON=localhost", hosts="localhost:4", arguments=("0.02",))
    pids = [job.next_event("script")["pid"] for _ in range(4)]
    job.kill(pids[1])
    (tmp_path / "go").touch()
    job.commit_of(3)
    job.finish_trained()


def test_all_hosts_are_replaced(start: Start) -> None:
    """The former rank 0 passes the state to the new workers, although its host has left the job."""
    job = start("train_numpy.py", "--min-np", "2", hosts="localhost:2", arguments=("0.02",))
    old = {job.next_event("commit")["pid"]} | set(job.workers())
    job.hosts("127.0.0.2:2")
    assert job.next_event("start", lambda event: event["pid"] not in old)["step"] > 0
    assert job.next_event("commit", lambda event: event["pid"] not in old)
    job.finish_trained()
    ends = {event["pid"] for event in job.events if event["kind"] == "end"}
    assert len(ends) == 2, job.text
    assert not ends & old, job.text


@pytest.mark.parametrize(
    ("framework", "kills"),
    [
        ("numpy", 10),
        pytest.param("numpy", 50, marks=pytest.mark.slow),
        pytest.param("torch", 50, marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
def test_workers_are_killed_at_random_moments(framework: str, kills: int, start: Start) -> None:
    chance = random.Random(kills)
    options = ("--min-np", "1", "--max-np", "4", "--blacklist-cooldown-range", "0", "0")
    job = start(f"train_{framework}.py", *options, hosts="localhost:2,127.0.0.2:2", arguments=("0.005",))
    for _ in range(kills):
        # At least one worker that has the state must remain.
        job.next_event("commit", lambda event: event["size"] >= 2)
        for _ in range(chance.randrange(3)):
            job.next_event("commit")
        job.replace(chance.choice(job.workers()))
    job.commit_of(4)
    job.finish_trained()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_no_worker_outlives_the_launcher(signum: signal.Signals, start: Start) -> None:
    job = start("train_numpy.py", "--min-np", "1", hosts="localhost:2", arguments=("0.01",))
    job.next_event("commit")
    workers = [os.pidfd_open(pid) for pid in job.workers()]
    job.process.send_signal(signum)
    for worker in workers:
        assert select.select([worker], [], [], LIMIT_SECONDS)[0], "a worker outlives its launcher"
        os.close(worker)
    assert job.process.wait(LIMIT_SECONDS) == (143 if signum == signal.SIGTERM else -9)


# The worker stops the launcher, prints and ends. The launcher then finds the output and the end at the same time.
LAST_OUTPUT = """
import os, signal

def wait_for_state(pid, state):
    while open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != state:
        os.sched_yield()

worker, launcher = os.getpid(), os.getppid()
if os.fork() == 0:
    os.setsid()
    os.closerange(0, 3)
    wait_for_state(worker, "Z")
    os.kill(launcher, signal.SIGCONT)
    os._exit(0)
os.kill(launcher, signal.SIGSTOP)
wait_for_state(launcher, "T")
os.write(1, b"last output\\n")
os._exit(3)
"""


def test_the_output_of_a_worker_precedes_the_report_of_its_end(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(LAST_OUTPUT)
    command = [*LAUNCHER, "--min-np", "1", "-H", "localhost:1", "--no-prefix", sys.executable, str(program)]
    job = run_to_end(command, joined=True)
    assert job.returncode == 3, job.stdout
    words = [line for line in job.stdout.splitlines() if "last output" in line or "exited with code 3" in line]
    assert words[0] == "last output", job.stdout
