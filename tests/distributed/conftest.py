"""Fixtures that run programs of torch.distributed in processes. Every rank of a world runs the tests in in_world/."""

from __future__ import annotations

import pytest

from tests.job import TORCH_HEAD, Job, Start


@pytest.fixture
def program(run_job: Start) -> Start:
    """Returns a function that runs a program of torch.distributed on `size` ranks to its end."""

    def run(launcher: str, size: int, text: str, **options: object) -> Job:
        return run_job(size, text, launcher, head=TORCH_HEAD, joined=True, **options)

    return run
