"""Starts elastic jobs on this machine. Their hosts are names of this machine, which the discovery script prints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .job import Job, Start, jobs_in


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Returns a function that starts an elastic job.

    For example: `start(program, "--min-np", "2", hosts="localhost:2", arguments=("100", "0.01"))`.
    """
    with jobs_in(tmp_path) as begin:

        def run(program: str, *options: str, hosts: str = "localhost:2", arguments: tuple[str, ...] = ()) -> Job:
            return begin(program, arguments, options, hosts)

        yield run
