"""Workers that are killed during the update of a sharded optimizer leave no parameters that are updated in part."""

from __future__ import annotations

import random
import select

import pytest

from tests.job import needs

from .job import Job, Start

needs("torch")


def wait_a_moment(job: Job, seconds: float) -> None:
    """Waits, so that the kill comes at a random moment of a step; ends early if the job's output ends."""
    select.select([], [], [], seconds)
    assert job.process.poll() is None, job.text


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.slow) for seed in range(3)])
def test_workers_are_killed_at_random_moments(seed: int, start: Start) -> None:
    chance = random.Random(seed)
    job = start("train_torch_sharded.py", "--min-np", "1", hosts="localhost:4")
    for size in (4, 3, 2):
        job.commit_of(size)
        job.commit_of(size)
        wait_a_moment(job, chance.random() * 0.2)
        job.replace(chance.choice(job.workers()))
    job.commit_of(1)
    job.finish_trained()


def test_a_worker_is_added(start: Start) -> None:
    job = start("train_torch_sharded.py", "--min-np", "1", hosts="localhost:1")
    job.commit_of(1)
    job.hosts("localhost:2")
    job.commit_of(2)
    job.finish_trained()
