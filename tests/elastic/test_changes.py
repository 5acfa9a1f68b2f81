"""Workers that are killed, hosts that come and go: training ends with the steps it was to make, and nothing is left."""

from __future__ import annotations

import os
import random
import select
import signal

import pytest

from .conftest import Start

COOLDOWN = ("--blacklist-cooldown-range", "1", "1")


@pytest.mark.parametrize("framework", ["torch", "keras"])
def test_rank_0_is_killed(framework: str, start: Start) -> None:
    pytest.importorskip("torch" if framework == "torch" else "tensorflow")
    job = start(f"train_{framework}.py", "--min-np", "1", hosts="localhost:2", arguments=("0.01",))
    assert job.next_event("commit")["size"] == 2
    zero = next(event["pid"] for event in job.events if event.get("rank") == 0)
    job.kill(zero)  # the other has the state; without a cool-down nobody comes in its place
    assert job.next_event("commit")["size"] == 1, job.text
    assert job.finish() == 0, job.text
    job.assert_trained()


def test_a_traced_function_goes_on_with_more_ranks(start: Start) -> None:
    """Traced where there was nobody to reduce with."""
    pytest.importorskip("tensorflow")
    job = start("train_keras.py", "--min-np", "1", hosts="localhost:1", arguments=("0.01",))
    job.commit_of(1)
    job.hosts("localhost:2")
    job.commit_of(2)
    assert job.finish() == 0, job.text
    job.assert_trained()


def test_workers_and_hosts_come_and_go(start: Start) -> None:
    options = ("--min-np", "2", "--max-np", "4", *COOLDOWN)
    job = start("train_numpy.py", *options, hosts="localhost:2,127.0.0.2:1", arguments=("0.02",))
    assert job.next_event("commit")["size"] == 3
    zero = next(event["pid"] for event in job.events if event.get("rank") == 0)
    job.kill(zero)
    assert job.next_event("commit")["size"] == 2, job.text
    # After the cool-down a new worker comes; then a host more, two of whose slots are too many.
    job.commit_of(3)
    job.hosts("localhost:2,127.0.0.2:1,127.0.0.3:3")
    job.commit_of(4)
    # Slots are taken away, of the oldest host too.
    job.hosts("localhost:1,127.0.0.3:1")
    job.commit_of(2)
    assert job.finish() == 0, job.text
    job.assert_trained()


def test_all_hosts_are_replaced(start: Start) -> None:
    """Rank 0 of before hands the state on, although its host is gone."""
    job = start("train_numpy.py", "--min-np", "2", hosts="localhost:2", arguments=("0.02",))
    old = {job.next_event("commit")["pid"]} | set(job.workers())
    job.hosts("127.0.0.2:2")
    assert job.next_event("start", lambda event: event["pid"] not in old)["step"] > 0
    assert job.next_event("commit", lambda event: event["pid"] not in old)
    assert job.finish() == 0, job.text
    job.assert_trained()
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
        # Somebody has to be left who has the state.
        job.next_event("commit", lambda event: event["size"] >= 2)
        for _ in range(chance.randrange(3)):
            job.next_event("commit")
        job.kill(chance.choice(job.workers()))
    job.commit_of(4)
    assert job.finish() == 0, job.text
    job.assert_trained()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_the_launcher_is_ended(signum: signal.Signals, start: Start) -> None:
    job = start("train_numpy.py", "--min-np", "1", hosts="localhost:2", arguments=("0.01",))
    job.next_event("commit")
    workers = [os.pidfd_open(pid) for pid in job.workers()]
    job.process.send_signal(signum)
    for worker in workers:
        assert select.select([worker], [], [], 60)[0], "a worker outlives its launcher"
        os.close(worker)
    assert job.process.wait(60) == (143 if signum == signal.SIGTERM else -9)
